"""The one seam for scale: `Engine.run(spec, emit) -> RunResult`."""
