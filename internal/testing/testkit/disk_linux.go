// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"testing"

	"golang.org/x/sys/unix"
)

// SmallDisk returns a folder with room for 64 KiB, until the test ends. Where the test may not mount one, which needs
// root, it skips the test.
func SmallDisk(tb testing.TB) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		tb.Skipf("cannot mount a small file system: %v", err)
	}
	tb.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
