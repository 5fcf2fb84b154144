"""One job from request to result: prepared, driven, checkpointed, stored, resumed."""
