"""The original codes of papers, run from checkouts that the user fetched.

`checkout` starts a code in a process of an interpreter that has its packages. The
scripts ``run_fastlloyd.py`` and ``run_feddp.py`` are what this process executes. They
need NumPy and the packages of the code, and nothing of this project.
"""
