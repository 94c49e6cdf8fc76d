// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
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

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
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

// TestSocketsFromBothSources: the kernel reports the same over netlink and in /proc, of sockets that listen and of both ends of
// connections.
func TestSocketsFromBothSources(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0", "0.0.0.0:0"} {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("no such address here: %v", err)
			continue
		}
		defer func() { _ = listener.Close() }()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
	}
	ours := map[uint32]bool{}
	for _, inode := range openSockets(os.Getpid()) {
		ours[inode] = true
	}
	states := []sockdiag.State{sockdiag.Listen, sockdiag.Established}
	asked, read := map[uint32]sockdiag.Socket{}, map[uint32]sockdiag.Socket{}
	into := func(all map[uint32]sockdiag.Socket) func(sockdiag.Socket) {
		return func(s sockdiag.Socket) {
			if ours[s.Inode] {
				s.Backlog = 0 // which only netlink knows
				all[s.Inode] = s
			}
		}
	}
	if err := sockdiag.Dump(states, into(asked)); err != nil {
		t.Skipf("no netlink here: %v", err)
	}
	sockdiag.Tables(0, states, into(read))
	if len(asked) == 0 || !maps.Equal(asked, read) {
		t.Errorf("netlink has %v, /proc has %v", asked, read)
	}
}

// TestSocketsOfAnotherNamespace: netlink answers for this process's network namespace alone, and the sockets of a process in another
// one are found nevertheless, beside those of this one.
func TestSocketsOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-test.run=^TestListensWhenTold$", "-test.v")
	cmd.Env = append(os.Environ(), "PORTOWNER_TEST_LISTEN=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	defer func() {
		_ = in.Close()
		_ = cmd.Wait()
	}()
	port := 0
	for lines := bufio.NewScanner(out); port == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "listens at %d", &port)
	}
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = here.Close() }()
	s := ReadSockets([]int{cmd.Process.Pid, os.Getpid()})
	if all := s.Listening(cmd.Process.Pid); len(all) != 1 || int(all[0].Port()) != port || port == 0 {
		t.Errorf("the process in the other namespace listens at %v, want port %d", all, port)
	}
	ours := func(a netip.AddrPort) bool { return int(a.Port()) == portOf(t, here.Addr()) }
	if all := s.Listening(os.Getpid()); !slices.ContainsFunc(all, ours) {
		t.Errorf("%v is not in %v", here.Addr(), all)
	}
}

// TestListensWhenTold is the child of the test above. A new namespace has no interface that is up, but a socket may listen.
func TestListensWhenTold(t *testing.T) {
	if os.Getenv("PORTOWNER_TEST_LISTEN") == "" {
		return
	}
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	fmt.Printf("listens at %d\n", portOf(t, listener.Addr()))
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent ends
}

// BenchmarkSockets compares what it costs to read all sockets of a host from both sources.
func BenchmarkSockets(b *testing.B) {
	states := append([]sockdiag.State{sockdiag.Listen, sockdiag.SynSent}, sockdiag.Connected...)
	b.Run("netlink", func(b *testing.B) {
		for b.Loop() {
			if err := sockdiag.Dump(states, func(sockdiag.Socket) {}); err != nil {
				b.Skip(err)
			}
		}
	})
	b.Run("proc", func(b *testing.B) {
		for b.Loop() {
			sockdiag.Tables(0, states, func(sockdiag.Socket) {})
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
	pids := []int{ended.Process.Pid, os.Getpid()}
	for limit := time.Now().Add(20 * time.Second); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if slices.Contains(ReadSockets(pids).Unanswered(os.Getpid()), want) {
			return
		}
	}
	t.Errorf("%v is not found: %v", want, ReadSockets(pids).Unanswered(os.Getpid()))
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
	if all := ReadSockets([]int{os.Getpid()}).Listening(os.Getpid()); !slices.Contains(all, addr) {
		t.Errorf("%v is not in %v", addr, all)
	}
	if all := ReadSockets([]int{1 << 30}).Listening(1 << 30); len(all) > 0 {
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
	inodes := map[uint32]bool{}
	eachSocket(0, []sockdiag.State{sockdiag.Established}, func(s sockdiag.Socket) {
		if s.Local == local.AddrPort() {
			inodes[s.Inode] = true
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
