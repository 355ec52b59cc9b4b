"""`python -m rewardedit.cli`, for launchers that start a module:
accelerate launch -m rewardedit.cli train RECIPE.
"""

import sys

from rewardedit.cli import main

sys.exit(main())
