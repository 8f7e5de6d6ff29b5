"""What a hub and a pool can be asked by programs that watch them: figures, in plain data and as text."""
