// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package sockdiag

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

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
