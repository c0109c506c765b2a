"""Owns: one file per subcommand: arguments in, one call, exit code out.
Does not own: any logic worth testing without a terminal.
Read first: main.py.
"""
