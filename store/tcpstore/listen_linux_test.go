// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const onlyIPv6Env = "COHORT_TEST_ONLY_IPV6"

// TestListenOnlyIPv6 serves in a network namespace that has no address of IPv4, which package net takes for one without IPv6.
func TestListenOnlyIPv6(t *testing.T) {
	if os.Getenv(onlyIPv6Env) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestListenOnlyIPv6$", "-test.v")
		cmd.Env = append(os.Environ(), onlyIPv6Env+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		}
		out, err := cmd.CombinedOutput()
		if len(out) == 0 && err != nil {
			t.Skipf("no network namespaces here: %v", err)
		}
		if err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	change := func(what uint, set func(*unix.Ifreq) error) {
		t.Helper()
		r, failure := unix.NewIfreq("lo")
		if failure == nil {
			failure = set(r)
		}
		if failure == nil {
			failure = unix.IoctlIfreq(fd, what, r)
		}
		if errors.Is(failure, unix.EPERM) {
			t.Skipf("the network namespace cannot be changed: %v", failure)
		}
		if failure != nil {
			t.Fatal(failure)
		}
	}
	change(unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil })
	change(unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(make([]byte, 4)) })
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	_ = l.Close()
	s, err := Listen(":0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := Dial(t.Context(), net.JoinHostPort("::1", strconv.Itoa(s.Port())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.Set(t.Context(), "k", nil); err != nil {
		t.Error(err)
	}
}
