"""Put the repository's root on the path: the trainer is not part of the installed
package.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
