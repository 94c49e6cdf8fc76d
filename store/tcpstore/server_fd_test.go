// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package tcpstore

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// boundSocket returns a socket that is bound and does not listen, as PyTorch's master_listen_fd often is.
func boundSocket(t *testing.T) (fd, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	inet, ok := name.(*unix.SockaddrInet4)
	if !ok {
		t.Fatalf("%T", name)
	}
	return fd, inet.Port
}

func TestListenFD(t *testing.T) {
	noLeaks(t)
	fd, port := boundSocket(t)
	_, err := ListenFD(fd, port+1)
	want := fmt.Sprintf("listen fd %d is bound to port %d, expected to be bound to port %d", fd, port, port+1)
	if !errors.Is(err, cohort.InvalidArgument) || !strings.Contains(err.Error(), want) {
		t.Errorf("another port: %v", err)
	}
	s, err := ListenFD(fd, port)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Port() != port {
		t.Errorf("port %d, want %d", s.Port(), port)
	}
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(t, c, wire.AppendPlain(nil, wire.Legacy, wire.NumKeys))
	read(t, c, 8)
}

func TestListenFDErrors(t *testing.T) {
	noLeaks(t)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(udp)
	local, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(local)
	for _, fd := range []int{int(f.Fd()), udp, local, 1 << 20} {
		if _, err := ListenFD(fd, 0); !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("descriptor %d: %v", fd, err)
		}
	}
	if _, err := f.Stat(); err != nil {
		t.Errorf("a refused descriptor was closed: %v", err)
	}
}
