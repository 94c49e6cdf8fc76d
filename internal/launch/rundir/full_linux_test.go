// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestFullTemporaryFolder: a folder for temporary files without room for those of a run is passed over, as Python's tempfile does.
func TestFullTemporaryFolder(t *testing.T) {
	tmp := testkit.SmallDisk(t)
	if err := os.WriteFile(filepath.Join(tmp, "large"), make([]byte, 100_000), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", tmp)
	d, err := New(Options{RunID: "a", Shim: true})
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(d.Path, tmp) {
		t.Errorf("it is %s", d.Path)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestTryFileHasNoName: a process that is killed while it tries a folder for temporary files leaves nothing in it.
func TestTryFileHasNoName(t *testing.T) {
	dir := t.TempDir()
	f, remove, err := tryFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = f.WriteString("x"); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	_ = f.Close()
	remove()
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}
