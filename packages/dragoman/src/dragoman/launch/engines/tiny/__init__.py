"""The engine `tiny`: small Llamas on numpy."""
