// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/testkit"
)

// TestFullDisk: a bundle on a full disk has whole files only, and is not there if it has none.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	root := testkit.SmallDisk(t)
	for name, first := range map[string][]byte{"some": make([]byte, 1000), "nothing": nil} {
		b := Create(root, name, time.Now())
		b.Write("first", first)
		b.Write("large", make([]byte, 100_000))
		dir, err := b.Close()
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Stat(dir); (err == nil) != (name == "some") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(root, "*", "*")); err != nil || len(left) != 1 ||
		!slices.Equal(names(t, filepath.Dir(left[0])), []string{"first"}) {
		t.Errorf("%v, %v", left, err)
	}
}
