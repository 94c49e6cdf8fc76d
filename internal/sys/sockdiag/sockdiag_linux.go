// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tries is how often Find looks while what it finds cannot be all. A table in /proc that changes while it is read lacks lines, on a host
// with many connections once in some thousand times.
const tries = 4

// kernelTells is set once the kernel has answered about a TCP socket: from then on, a socket that it does not find does not exist. The
// tables in /proc take milliseconds to read, and who resets connections one after the other must not make a server read them.
var kernelTells atomic.Bool

// Find returns the socket of this process's network namespace with these addresses: [ErrNotFound] if there is none, [ErrUnavailable] if
// neither netlink nor /proc tells. The socket at the other end of the same connection, which this process has open, shows which it is.
func Find(local, remote netip.AddrPort) (Socket, error) {
	return findBy(plain(local), plain(remote), look)
}

// findBy is Find for plain addresses by one way to look.
func findBy(local, remote netip.AddrPort, look func(local, remote netip.AddrPort) (found, own Socket, err error)) (s Socket, err error) {
	for range tries {
		var own Socket
		if s, own, err = look(local, remote); err != nil {
			return s, err
		}
		var sure bool
		if s, sure, err = conclude(s, own); sure {
			break
		}
	}
	return s, err
}

// conclude says what follows from the ends of a connection that were found: one that was not has no state. If it is not sure, it is better
// to look again.
func conclude(found, own Socket) (s Socket, sure bool, err error) {
	switch {
	case found.Inode != 0:
		return found, true, nil
	case own.State == 0: // this process has it open
		return found, false, ErrUnavailable
	case own.Inode == 0: // so no identity is known of any socket
		return found, true, ErrUnavailable
	case found.State != 0:
		return found, true, nil
	default: // an end that is established has another end
		return found, own.State != Established, ErrNotFound
	}
}

// look looks for the two ends of a connection.
func look(local, remote netip.AddrPort) (found, own Socket, err error) {
	if found, err = ask(local, remote); err == nil && found.Inode != 0 {
		return found, own, nil
	}
	if err == nil || errors.Is(err, unix.ENOENT) { // also the answer of a kernel that cannot tell about TCP at all
		if own, err = ask(remote, local); err == nil {
			return found, own, nil
		}
		if errors.Is(err, unix.ENOENT) && kernelTells.Load() { // the connection was reset
			return found, own, ErrNotFound
		}
	}
	return lookInTables(local, remote)
}

// lookInTables is look by the text in /proc.
func lookInTables(local, remote netip.AddrPort) (found, own Socket, err error) {
	tables(0, between(local.Port(), remote.Port()), func(s Socket) {
		switch {
		case !slices.Contains(Connected, s.State):
		case s.Local == local && s.Remote == remote:
			found = s
		case s.Local == remote && s.Remote == local:
			own = s
		}
	})
	return found, own, nil
}

// ask asks the kernel for one socket.
func ask(local, remote netip.AddrPort) (s Socket, err error) {
	found := false
	err = exchange(findRequest(local, remote), func(answer Socket) bool {
		s, found = answer, answer.Local == local && answer.Remote == remote // not one that listens there
		return true
	})
	if err == nil && !found {
		return Socket{}, unix.ENOENT
	}
	if err == nil {
		kernelTells.Store(true)
	}
	return s, err
}

// FindListener returns the socket of this process's network namespace that listens at exactly this address, and not at all addresses.
// Only netlink is asked.
func FindListener(at netip.AddrPort) (s Socket, err error) {
	at = plain(at)
	all := netip.IPv6Unspecified()
	if at.Addr().Is4() {
		all = netip.IPv4Unspecified()
	}
	err = exchange(findRequest(at, netip.AddrPortFrom(all, 0)), func(answer Socket) bool {
		s = answer
		return true
	})
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && (s.State != Listen || s.Local != at):
		return Socket{}, ErrNotFound
	case err != nil:
		return Socket{}, ErrUnavailable
	}
	return s, nil
}

// datagramLen is the largest part of a dump.
const datagramLen = 32 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, datagramLen); return &b }}

// Dump calls visit for every TCP socket of this process's network namespace that is in one of the states. It costs the kernel a
// pass over its table of connections unless only listening sockets are asked for. It fails where the kernel has no such
// interface, as in gVisor.
func Dump(states []State, visit func(Socket)) error {
	return exchange(request(states), func(s Socket) bool {
		visit(s)
		return false
	})
}

// exchange sends a question to the kernel and calls visit for each socket of the answer, until that returns true.
func exchange(question []byte, visit func(Socket) (enough bool)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fmt.Errorf("sockdiag: open a netlink socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers at once. If it does not, /proc is there.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return fmt.Errorf("sockdiag: %w", err)
	}
	if err := unix.Sendto(fd, question, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("sockdiag: send the request: %w", err)
	}
	buf := buffers.Get().(*[]byte) //nolint:errcheck // nothing else is put there
	defer buffers.Put(buf)
	for {
		n, from, err := unix.Recvfrom(fd, *buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sockdiag: read the answer: %w", err)
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
			continue // another process sent it
		}
		enough := false
		if done, err := parse((*buf)[:n], func(s Socket) { enough = visit(s) }); done || enough || err != nil {
			return err
		}
	}
}

// Tables calls visit for every TCP socket in one of the states, in the network namespace of a process, 0 for this one. It reads the text
// in /proc: that is for other namespaces, and for kernels and containers without the netlink protocol, which answers faster.
func Tables(pid int, states []State, visit func(Socket)) {
	tables(pid, func([]byte) bool { return true }, func(s Socket) {
		if slices.Contains(states, s.State) {
			visit(s)
		}
	})
}

// tables is Tables for the lines that keep accepts, in all states.
func tables(pid int, keep func(line []byte) bool, visit func(Socket)) {
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join("/proc", procName(pid), "net", table)) //nolint:gosec // a file of the kernel
		if err != nil {
			continue
		}
		readTable(file, keep, visit)
		_ = file.Close()
	}
}

// between returns what keeps the lines that have both ports: hosts have many thousands of lines, and to take one apart costs much more than
// to look for a port in it.
func between(a, b uint16) func(line []byte) bool {
	first, second := fmt.Appendf(nil, ":%04X ", a), fmt.Appendf(nil, ":%04X ", b)
	return func(line []byte) bool { return bytes.Contains(line, first) && bytes.Contains(line, second) }
}

// readTable reads the lines of a table in /proc.
func readTable(r io.Reader, keep func(line []byte) bool, visit func(Socket)) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if !keep(lines.Bytes()) {
			continue
		}
		if s, ok := parseLine(lines.Text()); ok {
			visit(s)
		}
	}
}

// parseLine reads "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...", of which the addresses, the state
// and the retransmissions are in hex.
func parseLine(line string) (s Socket, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, false
	}
	if s.Local, ok = parseAddr(fields[1]); !ok {
		return s, false
	}
	s.Remote, _ = parseAddr(fields[2])
	state, err := strconv.ParseUint(fields[3], 16, 8)
	if err != nil {
		return s, false
	}
	retries, _ := strconv.ParseUint(fields[6], 16, 32)
	uid, _ := strconv.ParseUint(fields[7], 10, 32)
	inode, err := strconv.ParseUint(fields[9], 10, 32)
	s.State, s.Retries, s.UID, s.Inode = State(state), uint8(min(retries, 255)), uint32(uid), uint32(inode)
	return s, err == nil
}

// parseAddr reads an address as the kernel writes it there: words of 32 bits in the machine's byte order, in hex.
func parseAddr(text string) (addr netip.AddrPort, ok bool) {
	words, hexPort, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	if err != nil || len(raw)%4 != 0 {
		return addr, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, ok := netip.AddrFromSlice(raw)
	port, err := strconv.ParseUint(hexPort, 16, 16)
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), ok && err == nil
}

func procName(pid int) string {
	if pid == 0 {
		return "self"
	}
	return strconv.Itoa(pid)
}
