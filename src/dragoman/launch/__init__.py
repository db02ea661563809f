"""From settings to a running server: picks the engine, builds the model around it, says what it serves, serves.

The only layer that knows all the others. One module for each kind of engine, imported when it is chosen.
"""

from .models import build_models
from .parting import Parting
from .server import Server, greeting, run, serving_options, uvicorn_config

__all__ = ["Parting", "Server", "build_models", "greeting", "run", "serving_options", "uvicorn_config"]
