// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

// tensorPipeBacklog is how many connections may wait at a port of TensorPipe. At one of ours or of a store of PyTorch more may, except
// where the system allows no more.
const tensorPipeBacklog = 128

// RefuseTorchPort returns a [*TorchPortError] if a process of PyTorch on this host listens at addr in person, and not on all addresses as a
// store does. It is asked before a connection is made: TensorPipe reads the first eight bytes of one as a length, and aborts its process
// when there is not so much memory; and after a connection that says nothing its agent accepts no other. What is not known is not
// refused: nothing is known of other hosts, and of the processes of other users.
func RefuseTorchPort(addr string) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil //nolint:nilerr // it is not of this host's
	}
	s, err := sockdiag.FindListener(at)
	if err != nil || s.Inode == 0 || s.Backlog > tensorPipeBacklog {
		return nil //nolint:nilerr // likewise
	}
	var owner Owner
	eachOpenSocket(func(pid int, inode uint32) bool {
		if inode == s.Inode {
			owner = describe(pid)
		}
		return inode != s.Inode
	})
	if owner.PID == 0 || !Loaded(owner.PID, "/libtorch") {
		return nil
	}
	return &TorchPortError{At: s.Local, Owner: owner}
}

// Loaded reports whether a process has loaded a library.
func Loaded(pid int, library string) bool {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "maps")) // a file of the kernel
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if bytes.Contains(sc.Bytes(), []byte(library)) {
			return true
		}
	}
	return false
}
