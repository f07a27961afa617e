"""Moves of a training by its steps: counted anew in each epoch, by several ranks, and repeated by side threads."""

from __future__ import annotations

from stoker.agent.metric_progress import StepCount


def moves_of(*reports: tuple[int, dict[str, float]], before: int = 200) -> int:
    """How many of these are moves, after so many ordinary steps."""
    count = StepCount()
    for step in range(before):
        count.note(step, {"loss": 1.0 / (step + 1)})
    began = count.moves
    for step, values in reports:
        count.note(step, values)
    return count.moves - began


def test_every_new_step_is_a_move_and_the_same_again_is_none() -> None:
    assert moves_of(before=200) == 0
    assert moves_of((200, {}), (200, {}), (200, {"temperature": 50.0}), (201, {})) == 2


def test_a_training_that_goes_back_to_an_older_checkpoint_moves() -> None:
    assert moves_of(*((step, {"loss": 0.5}) for step in range(100, 200))) == 100


def test_short_epochs_that_count_anew_move() -> None:
    for length in (5, 10, 30):
        told = [(step, {"loss": 1.0 / (1 + epoch)}) for epoch in range(40) for step in range(length)]
        assert moves_of(*told) == len(told)
        silent = [(step, {}) for _ in range(40) for step in range(length)]
        assert moves_of(*silent) >= 0.9 * len(silent)


def test_ranks_that_train_report_out_of_order_and_move() -> None:
    told = [(step + late, {}) for step in range(200, 300) for late in (0, 2, 1, 0)]
    assert moves_of(*told) >= 100


def test_ranks_that_hang_at_different_steps_and_repeat_them_do_not_move() -> None:
    told = [(step, {"waited": 1.0}) for _ in range(500) for step in (199, 198)]
    assert moves_of(*told) <= 32
    three = [(step, {}) for _ in range(500) for step in (199, 197, 198)]
    assert moves_of(*three) <= 32


def test_a_step_that_comes_again_with_another_value_is_a_move() -> None:
    hung = [(step, {"waited": 1.0}) for _ in range(500) for step in (199, 198)]
    told = (198, {"waited": 1.0}), (199, {"waited": 2.0}), (198, {"waited": 1.0}), (199, {"waited": 2.0})
    assert moves_of(*hung, *told) - moves_of(*hung) == 1
    more = (199, {"waited": 1.0, "loss": 5.0}), (198, {"waited": 1.0})
    assert moves_of(*hung, *more) - moves_of(*hung) == 1, "a value that it did not have before"


def test_a_step_that_was_reported_long_ago_is_new_again() -> None:
    hung = [(step, {}) for _ in range(500) for step in (199, 198)]
    assert moves_of(*hung, (135, {}), before=200) - moves_of(*hung) == 1
    assert moves_of(*hung, (137, {}), before=200) - moves_of(*hung) == 0


def test_the_first_report_is_a_move() -> None:
    assert moves_of((5, {}), before=0) == 1 and moves_of((5, {}), (5, {}), before=0) == 1


def test_a_step_that_comes_again_and_again_is_remembered() -> None:
    count = StepCount()
    moves = []
    for other in range(2, 152):
        count.note(other, {})
        count.note(1, {})
        moves.append(count.moves)
    assert moves[-1] - moves[49] == 100, "a thread that repeats one step beside a training does not move it"


def test_epochs_of_four_steps_that_count_anew_move() -> None:
    assert moves_of(*((step, {}) for _ in range(40) for step in range(4)), before=0) == 160
