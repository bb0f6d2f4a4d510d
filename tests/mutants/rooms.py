"""All mutants by room of the package."""

from . import (
    room_data,
    room_evaluation,
    room_inspection,
    room_logic,
    room_models,
    room_objective,
    room_operators,
    room_training,
)

ROOMS = {
    module.__name__.rpartition("room_")[2]: module.MUTANTS
    for module in (
        room_objective,
        room_operators,
        room_models,
        room_training,
        room_data,
        room_evaluation,
        room_inspection,
        room_logic,
    )
}

FIRST = {
    "objective": 25,
    "operators": 33,
    "models": 39,
    "training": 43,
    "data": 52,
    "evaluation": 43,
    "inspection": 52,
    "logic": 36,
}
"""Number of mutants of each room that the tests killed when it was run for the first time."""
