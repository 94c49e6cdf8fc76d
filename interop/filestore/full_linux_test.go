// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// TestFullDisk fills the disk under a file that Go and PyTorch share. What was stored stays readable for both, both
// report that the disk is full, and both continue when there is. PyTorch leaves the beginning of a record at the end of
// the file, on which it would spin itself; Go cuts it off.
func TestFullDisk(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		host, inside := tr.TempDir(t)
		if err := unix.Mount("tmpfs", host, "tmpfs", 0, "size=64k"); err != nil {
			t.Skipf("this machine cannot mount a small file system: %v", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(host, unix.MNT_DETACH) })
		s, py := open(t, filepath.Join(host, "store")), start(t, tr, filepath.Join(inside, "store"), noWorld)
		const size = 1999 // no part of a page
		stored, problem := 0, ""
		for ; stored < 100; stored++ {
			py.send("set", fmt.Sprint("k", stored), strings.Repeat("x", size))
			if _, problem = py.answer(); problem != "" {
				break
			}
		}
		t.Logf("after %d values PyTorch says: %s", stored, problem)
		if stored < 10 || stored == 100 {
			t.Fatalf("%d values are stored", stored)
		}
		all := func() {
			t.Helper()
			for i := range stored {
				key, want := fmt.Sprint("k", i), strings.Repeat("x", size)
				wantGet(t, s, key, want)
				py.want(want, "get", key)
			}
		}
		all()
		if err := s.Set(t.Context(), "big", make([]byte, 3*size)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("Go stores more: %v", err)
		}
		all()
		if err := unix.Mount("tmpfs", host, "tmpfs", unix.MS_REMOUNT, "size=1m"); err != nil {
			t.Fatal(err)
		}
		py.want(nil, "set", "of PyTorch", "room")
		wantGet(t, s, "of PyTorch", "room")
		if err := s.Set(t.Context(), "of Go", []byte("room")); err != nil {
			t.Error(err)
		}
		py.want("room", "get", "of Go")
		all()
	})
}
