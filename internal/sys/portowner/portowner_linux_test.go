// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func portOf(t *testing.T, addr net.Addr) int {
	t.Helper()
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		t.Fatalf("%v is not a TCP address", addr)
	}
	return tcp.Port
}

func TestFindNamesThisProcess(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skipf("no such address here: %v", err)
		}
		port := portOf(t, listener.Addr())
		owner, ok := Find(port)
		if !ok || owner.PID != os.Getpid() || !strings.Contains(owner.Command, "portowner") {
			t.Errorf("owner of %s is %v, %v; want pid %d", listener.Addr(), owner, ok, os.Getpid())
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
		if owner, ok := Find(port); ok {
			t.Errorf("port %d is free, but Find names %v", port, owner)
		}
	}
}

func TestFindIgnoresConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if owner, ok := Find(portOf(t, conn.LocalAddr())); ok {
		t.Errorf("a connected socket does not listen, but Find names %v", owner)
	}
}

func TestClientsNamesThisProcess(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Skipf("no such address here: %v", err)
		}
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		local := netip.MustParseAddrPort(conn.LocalAddr().String())
		unknown := netip.MustParseAddrPort("192.0.2.1:4000")
		owners := Clients(portOf(t, listener.Addr()), []netip.AddrPort{unknown, local})
		if len(owners) != 1 || owners[local].PID != os.Getpid() || !strings.Contains(owners[local].Command, "portowner") {
			t.Errorf("the client %s: %+v", local, owners)
		}
		_ = conn.Close()
		_ = listener.Close()
	}
}

// A launcher's RANK is found in the environment that a process was started with.
func TestClientsTellsTheRank(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestDialsWhenTold$", "-test.v")
	cmd.Env = append(os.Environ(), "RANK=7", "PORTOWNER_TEST_DIAL="+listener.Addr().String())
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	peer := netip.MustParseAddrPort(conn.RemoteAddr().String())
	var owner Owner
	for limit := time.Now().Add(time.Minute); owner.PID == 0 && time.Now().Before(limit); { // a search of a busy machine may be given up
		owner = Clients(portOf(t, listener.Addr()), []netip.AddrPort{peer})[peer]
	}
	if owner.PID != cmd.Process.Pid || owner.Rank != "7" {
		t.Errorf("the client is %+v, want pid %d with rank 7", owner, cmd.Process.Pid)
	}
	_ = conn.Close() // ends the child
	if err = cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestDialsWhenTold is the child of the test above.
func TestDialsWhenTold(t *testing.T) {
	addr := os.Getenv("PORTOWNER_TEST_DIAL")
	if addr == "" {
		return
	}
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Read(make([]byte, 1))
}

// TestListenersFromBothSources: the kernel reports the same over netlink and in /proc.
func TestListenersFromBothSources(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("no such address here: %v", err)
			continue
		}
		defer func() { _ = listener.Close() }()
		tcp, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatalf("%v is not a TCP address", listener.Addr())
		}
		addr := unmapped(tcp.AddrPort())
		asked := map[netip.AddrPort]string{}
		if err := askListeners(func(local netip.AddrPort, inode string) { asked[local] = inode }); err != nil {
			t.Skipf("no netlink here: %v", err)
		}
		read := readListeners()
		if asked[addr] == "" || asked[addr] != read[addr] || Listeners()[addr] != read[addr] {
			t.Errorf("%s: netlink has %q, /proc has %q", addr, asked[addr], read[addr])
		}
	}
}

// BenchmarkListeners compares them.
func BenchmarkListeners(b *testing.B) {
	b.Run("netlink", func(b *testing.B) {
		for b.Loop() {
			if err := askListeners(func(netip.AddrPort, string) {}); err != nil {
				b.Skip(err)
			}
		}
	})
	b.Run("proc", func(b *testing.B) {
		for b.Loop() {
			readListeners()
		}
	})
}

// TestDialing: a connection to a host that does not answer is found, also beside a process that has just ended. The listener here
// takes none, and has no room for more.
func TestDialing(t *testing.T) {
	t.Parallel()
	open := func() int {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		return fd
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	listener := open()
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(listener, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		_ = unix.Connect(open(), name) // in progress
	}
	inet, _ := name.(*unix.SockaddrInet4)
	want := netip.AddrPortFrom(netip.AddrFrom4(inet.Addr), uint16(inet.Port))
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if slices.Contains(Dialing([]int{ended.Process.Pid, os.Getpid()})[os.Getpid()], want) {
			return
		}
	}
	t.Errorf("%v is not found: %v", want, Dialing([]int{ended.Process.Pid, os.Getpid()}))
}

// TestListening: the sockets that a process listens on are found, and no others.
func TestListening(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(portOf(t, l.Addr())))
	if all := Listening([]int{os.Getpid()}); !slices.Contains(all[os.Getpid()], addr) {
		t.Errorf("%v is not in %v", addr, all)
	}
	if all := Listening([]int{1 << 30}); len(all) > 0 {
		t.Errorf("of a process that does not exist: %v", all)
	}
}

// TestClientsOfOneServer: two connections can have the same address on one side, if they go to different servers.
func TestClientsOfOneServer(t *testing.T) {
	t.Parallel()
	var ports []int
	var local *net.TCPAddr
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, portOf(t, l.Addr()))
	}
	reuse := func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(err, c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }))
	}
	for _, port := range ports {
		d := net.Dialer{Control: reuse}
		if local != nil {
			d.LocalAddr = local
		} else {
			d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		}
		conn, err := d.DialContext(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		local, _ = conn.LocalAddr().(*net.TCPAddr)
	}
	inodes := map[string]bool{}
	eachSocket("/proc/net", func(s socket) {
		if s.local == local.AddrPort() && s.state == stateEstablished {
			inodes[s.inode] = true
		}
	})
	if len(inodes) != 2 {
		t.Fatalf("%d connections have the address %v", len(inodes), local)
	}
	for port, want := range map[int]int{ports[0]: 1, ports[1]: 1, 1: 0} {
		if got := len(clientSockets(port, map[netip.AddrPort]bool{local.AddrPort(): true})); got != want {
			t.Errorf("%d connections to port %d, want %d", got, port, want)
		}
	}
}
