"""Settings of logistic regression: how long θ moves at every barrier, and how steps are judged (algorithms/lr)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from flegel.configuration.setting import Setting


@dataclass(frozen=True)
class LogisticRegressionSettings:
    """Steps of Newton's method and of L-BFGS. Errors of rounding that bound some of them are no settings."""

    steps_per_pass: Annotated[
        float,
        Setting(
            "Newton steps",
            "Per pass while θ moves at every barrier. A barrier's step is in proportion to its visits.",
            0.01,
            100,
        ),
    ] = 2.0
    sample_start_rows: Annotated[
        int,
        Setting("rows", "Of the sample, at most, at whose minimum the search of two classes begins.", 1, 1073741824),
    ] = 4096
    sample_start_rows_per_column: Annotated[
        int, Setting("rows", "For each column, without which that minimum is that of these rows alone.", 1)
    ] = 16
    sample_start_long_row: Annotated[
        float,
        Setting(
            "times the usual length of a row",
            "No other row stands for a longer one. Without such rows, starts on tables with heavy tails and 5,000 rows "
            "took 18 passes in place of 6 to the end of a job.",
            1,
        ),
    ] = 3.0
    sample_start_work: Annotated[
        int,
        Setting("multiplications", "Of the second derivatives there, at most, in one step: 4 ms.", 1, 1099511627776),
    ] = 2**24
    sample_start_steps: Annotated[int, Setting("Newton steps", "Towards that minimum, at most.", 0)] = 12
    passes_before_late_sums: Annotated[int, Setting("passes", "Before the rate of convergence is judged.")] = 20
    late_sums_from_steps: Annotated[
        float,
        Setting(
            "steps",
            "All second derivatives are summed where more steps than that, and "
            "`late_sums_from_steps_per_column` for each column, would follow without. Summing them takes "
            "columns / 4 times as long as a pass, and some of it again as θ moves; then nearly collinear tables "
            "need about 20 steps, where without they need hundreds. Connections of a network (118 columns, 23 "
            "classes) need 50 without.",
        ),
    ] = 20.0
    late_sums_from_steps_per_column: Annotated[float, Setting("steps", "As `late_sums_from_steps`.")] = 0.5
    armijo: Annotated[float, Setting("of the promised gain", "A step must bring so much (Armijo).", 0, 1)] = 1e-4
    least_damping: Annotated[float, Setting("relative", "Smallest damping of a Newton step.", 1e-300, 1)] = 1e-10
    first_damping: Annotated[float, Setting("relative", "First damping of a Newton step.", 1e-300, 1000000.0)] = 1e-6
    most_damping: Annotated[
        float, Setting("relative", "Largest damping of a Newton step.", 1e-300, 1000000000000.0)
    ] = 1e3
    curvature_headroom: Annotated[
        float,
        Setting(
            "ratio",
            "Factor on the curvature while θ moves at every barrier: gradients are up to one pass old then.",
            0.1,
        ),
    ] = 1.25
    moving_passes: Annotated[
        int,
        Setting(
            "passes",
            "θ moves at every barrier for so many at most, or until a pass lowers the loss by less than "
            "`moving_ends_below_gain`.",
        ),
    ] = 6
    moving_ends_below_gain: Annotated[float, Setting("relative", "As `moving_passes`.", 0, 1)] = 0.01
    recount_moving: Annotated[
        float,
        Setting(
            "relative", "A point's curvature is counted again when it has changed by this part, while θ moves.", 0, 1
        ),
    ] = 0.5
    recount_held: Annotated[float, Setting("relative", "The same while θ is held.", 0, 1)] = 0.2
    stalled_passes: Annotated[
        int,
        Setting(
            "passes",
            "In which the objective must fall by a hundredth once θ is held; otherwise the search ends with a warning.",
            1,
        ),
    ] = 50
    credible_promise: Annotated[
        float,
        Setting(
            "of the objective",
            "A Newton step that promises more is not trusted: it comes from points far on the wrong side, where "
            "the loss is almost straight.",
            0.01,
        ),
    ] = 2.0
    slope_left: Annotated[
        float,
        Setting(
            "of the slope at its start",
            "Where so much is left at the end of a whole Newton step, the next one is twice as long: 0.37 where the "
            "loss falls as exp(-score), up to 0.2 where second derivatives lag.",
            0,
            1,
        ),
    ] = 0.25
    longest_newton_step: Annotated[
        float, Setting("Newton steps", "So long at most: all losses vanish after five doublings.", 1)
    ] = 32.0
    shortest_step: Annotated[
        float,
        Setting(
            "of a step",
            "A step of L-BFGS that failed is made shorter down to this part; then its pairs are given up.",
            0,
            1,
        ),
    ] = 0.01
    pairs_kept_above_length: Annotated[
        float,
        Setting(
            "of a step",
            "A step of L-BFGS that had to be made shorter than this part met another curvature than that of the pairs "
            "before it, which are given up. With them a table with one long row and nine classes took 379 passes.",
            0,
            1,
        ),
    ] = 0.1
    plausible_promise: Annotated[
        float,
        Setting(
            "of the objective",
            "A step of L-BFGS that promises more is made shorter before it is tried. A quadratic brings half of "
            "what a step promises at first, and the objective cannot fall below 0; longer ones failed in all "
            "cases.",
            0.01,
        ),
    ] = 1.0
    most_pairs: Annotated[
        int,
        Setting(
            "pairs",
            "L-BFGS keeps so many, like other implementations, or as many as fit into `pair_bytes`, at least 2: "
            "every step reads them five times. With 12,626 columns and 20 classes 10 need 35 passes, 5 need 37, and "
            "2 need 57.",
            2,
            100,
        ),
    ] = 10
    pair_bytes: Annotated[int, Setting("bytes", "As `most_pairs`.", 1, 68719476736)] = 128 << 20
    least_curvature: Annotated[
        float,
        Setting(
            "of the mean over all classes",
            "Where the curvature of a column for one class is less, its step is no longer.",
            0,
            1,
        ),
    ] = 1e-3
    curvature_held: Annotated[
        float,
        Setting(
            "of the second derivatives",
            "Where points' curvature changed in the last Newton step (`kernels.lr_bent_part`), but the sums over all "
            "points by less than this part in every direction, what the step promises is still right within about so "
            "much. Of many rows there are always some whose curvature changes: without this rule tables of 20,000 and "
            "50,000 rows went on for a pass, to 1e-9 of the minimum, where 1e-4 was asked for and 1e-6 reached.",
            0,
            1,
        ),
    ] = 0.3
    usual_weight: Annotated[
        float,
        Setting(
            "of a mean",
            "Weight of the last step in the mean over steps from which the rate of convergence is taken.",
            0.001,
            1,
        ),
    ] = 0.25
    estimated_gap: Annotated[
        float,
        Setting(
            "ratio",
            "Factor on distances to the minimum that follow from an estimate of the curvature: without it, "
            "1.2e-4 was found where they said 1e-4, and 1.4e-4 with half of it.",
            0.1,
        ),
    ] = 2.0
    estimated_gap_by_pairs: Annotated[
        float,
        Setting(
            "ratio",
            "The same where steps are L-BFGS's: with 2, 7.8e-4 was found where they said 1e-4, and 1.1e-4 in 1 of 260 "
            "other tables; with 16, 1.3e-5 in these.",
            0.1,
        ),
    ] = 16.0
    least_objective: Annotated[
        float,
        Setting(
            "of the objective of weights 0",
            "Distances to the minimum are parts of the objective, or of this where it is smaller: what is left of sums "
            "that began there is rounding. With 1e-4, a job whose minimum was 0.2 % of it said converged 1.4e-4 above.",
            1e-15,
            1,
        ),
    ] = 1e-9
    bound_with_bias: Annotated[
        float,
        Setting(
            "ratio",
            "Factor on bounds of the distance to the minimum by the penalty alone where there is a bias: in 2,005 "
            "steps of 90 tables the distance was up to 6 times the bound without it.",
            1,
        ),
    ] = 8.0
    warned_from_steps: Annotated[
        int,
        Setting(
            "steps", "A search that is further than `warned_from_gap` from its minimum after so many is warned of.", 1
        ),
    ] = 30
    warned_from_gap: Annotated[float, Setting("relative", "As `warned_from_steps`.", 0)] = 1e-3
    direction_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "In the leading directions: 64 kB at every barrier; all directions up to 90 columns.",
            1,
            1073741824,
        ),
    ] = 8192
    flat_curvature: Annotated[
        float,
        Setting(
            "of the largest curvature",
            "A direction with less has none: rows in float32 leave 1e-14, offsets more.",
            0,
            1,
        ),
    ] = 1e-9
    direction_rounds: Annotated[
        int, Setting("rounds", "Of that iteration; it also serves where few of many columns' directions are wanted.", 1)
    ] = 30
    recount_diagonal: Annotated[
        float,
        Setting(
            "relative",
            "As `recount_moving`, where only the diagonal is summed. It only scales steps that L-BFGS corrects: 784 "
            "columns and 10 classes need as many passes as with all changes counted (60 and 65 of pictures, 21 of "
            "random rows), and these take half as long.",
            0,
            1,
        ),
    ] = 0.5
    negligible_in_diagonal: Annotated[
        float,
        Setting("of the mean curvature", "Below which a change does not count there.", 0),
    ] = 0.5
    direction_rows: Annotated[
        int,
        Setting(
            "rows",
            "Of a dense sample, at most, from which directions are found: five a column where there are 784, whose ten "
            "leading ones then take as many passes as those of 20,000 rows.",
            1,
        ),
    ] = 4096
    product_rows: Annotated[
        int,
        Setting(
            "rows",
            "Of a block of the kernel by products: its gradient is added to float64 sums once, which of 2,048 columns"
            " × 1,000 classes takes a twelfth of the time of the block; with 256 rows a fifth.",
            1,
            65536,
        ),
    ] = 512
    product_numbers: Annotated[
        int,
        Setting(
            "numbers",
            "Of a product that exist at a time before they are added to the gradient: 4 MB in float32.",
            1,
            1099511627776,
        ),
    ] = 2**20
    product_multiplications: Annotated[
        int,
        Setting(
            "multiplications",
            "Of scores between two looks at the stop flag. Of 512 rows × 2,048 columns, 500 outputs at a time take as"
            " long as all 1,000; 128 a quarter longer, 64 two fifths.",
            1,
            1099511627776,
        ),
    ] = 2**29
    outputs_per_outdated_curvature: Annotated[
        int,
        Setting(
            "outputs",
            "For each outdated curvature of a row, in the mean of a block: where a row has fewer outputs, these "
            "curvatures cost as much one by one as a product for all outputs.",
            1,
        ),
    ] = 64
    moment_rows: Annotated[int, Setting("rows", "Of the sample whose moments are computed at a time.", 1)] = 1024
    long_row: Annotated[
        float,
        Setting(
            "times the usual size of its column",
            "A row of the sample with a larger number is left out where means and units of columns are found.",
            1,
        ),
    ] = 1e3
    long_row_curvature: Annotated[
        float,
        Setting(
            "of the curvature of the bias",
            "Where the mean of all columns is larger, most of it is due to rows far longer than the others.",
            1,
        ),
    ] = 16.0
    bent_long_rows: Annotated[
        float,
        Setting(
            "relative",
            "A step that changes that curvature by more says nothing of the distance to the minimum: while it halved "
            "at every step, 1e-5 was promised where 2e-3 were left, and while it changed by 9 %, 2e-7 where 1e-3 were.",
            0,
            1,
        ),
    ] = 0.02
    long_rows_gap: Annotated[
        float,
        Setting(
            "ratio",
            "Factor on distances to the minimum where such rows were summed at any time: with 2, 1.3e-4 and 2.0e-4 "
            "were found where 1e-4 was said (2 of 100 tables).",
            1,
        ),
    ] = 8.0
    most_fractional_labels: Annotated[
        int,
        Setting(
            "labels",
            "Different labels that may be decimal numbers: half stars make ten, and measured quantities have hundreds.",
            2,
        ),
    ] = 20
    well_conditioned_pivot: Annotated[
        float,
        Setting(
            "part of a column's curvature that no column before it has",
            "Above this pivot rounding moves no weight by as much as 1e-3 of its unit, and no directions are looked "
            "at.",
            0,
            1,
        ),
    ] = 1e-3
    negligible_curvature: Annotated[
        float, Setting("of the mean", "A point whose curvature is below is not counted again.", 0, 1)
    ] = 1e-12
