// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package shm

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
)

// TestSegmentThatCanShrink: a rank does not map memory that another process can take away below it, even if all else is right.
func TestSegmentThatCanShrink(t *testing.T) {
	t.Parallel()
	c := Config{Size: 2, Exchange: newBoard(), Arena: 1 << 20}
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	f, s, err := createSegment(&c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.unmap(); _ = f.Close() }()
	if seals, failed := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); failed != nil || seals&unix.F_SEAL_SHRINK == 0 {
		t.Skipf("this kernel has no memory that can be sealed: %v", failed)
	}
	fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	unsealed := os.NewFile(uintptr(fd), "unsealed")
	defer func() { _ = unsealed.Close() }()
	if _, err = unsealed.Write(s.mem); err != nil {
		t.Fatal(err)
	}
	if got, failed := openSegment(unsealed, 2); !errors.Is(failed, cohort.Protocol) {
		t.Errorf("an unsealed segment: %v", failed)
		got.unmap()
	}
	if _, err = unix.FcntlInt(unsealed.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	got, err := openSegment(unsealed, 2)
	if err != nil {
		t.Fatalf("the same, sealed: %v", err)
	}
	got.unmap()
}
