"""`python -m rewardedit`, the command, also where its script is not on the path."""

import sys

from rewardedit.cli import main

sys.exit(main())
