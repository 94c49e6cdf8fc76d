// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package filestore

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, ctx := filepath.Join(dir, "store"), t.Context()
	s := open(t, path)
	var full error
	written := 0
	quickly(t, func() {
		for ; full == nil && written < 100; written++ {
			full = s.Set(ctx, "k", bytes.Repeat([]byte{byte(written)}, 3000))
		}
	})
	if !errors.Is(full, unix.ENOSPC) || written > 30 {
		t.Fatalf("after %d writes: %v", written, full)
	}
	t.Log(full)
	before := content(t, path)
	if err := s.Set(ctx, "k", make([]byte, 10000)); !errors.Is(err, unix.ENOSPC) || content(t, path) != before {
		t.Errorf("a failed write changed the file: %v", err)
	}
	fresh := newStore(path)
	if err := fresh.refresh(fresh.waiting(ctx)); err != nil {
		t.Errorf("the file cannot be read: %v", err)
	}
	fresh.forget()
	if v, err := s.Get(ctx, "k"); err != nil || v[0] != byte(written-2) {
		t.Errorf("the last value that was stored is gone: %d, %v", v[0], err)
	}
}
