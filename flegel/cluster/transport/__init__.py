"""Messages between hosts: keys, framing, one ordered conversation, who may say what."""
