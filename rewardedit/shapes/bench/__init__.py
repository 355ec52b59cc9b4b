"""Every scorer of the offline world on one page: `rewardedit bench shapes`."""
