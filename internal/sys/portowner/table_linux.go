// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

// eachSocket calls visit for every TCP socket in one of the states, in the network namespace of a process; 0 is this process.
// Netlink answers for this process's namespace alone, so the sockets of another one are read from its table in /proc.
func eachSocket(pid int, states []sockdiag.State, visit func(sockdiag.Socket)) {
	if sameNamespace(pid) {
		var all []sockdiag.Socket // only a whole answer counts
		if err := sockdiag.Dump(states, func(s sockdiag.Socket) { all = append(all, s) }); err == nil {
			for _, s := range all {
				visit(s)
			}
			return
		}
	}
	readTables(pid, states, visit)
}

// namespace identifies the network namespace of a process, "" if that is not known.
func namespace(pid int) string {
	name, _ := os.Readlink(filepath.Join("/proc", procName(pid), "ns/net"))
	return name
}

// sameNamespace reports whether a process has the network namespace of this one, or may have it: what may not be asked of a
// process is not known.
func sameNamespace(pid int) bool {
	if pid == 0 {
		return true
	}
	there := namespace(pid)
	return there == "" || there == namespace(0)
}

func procName(pid int) string {
	if pid == 0 {
		return "self"
	}
	return strconv.Itoa(pid)
}

// readTables is eachSocket by the text in /proc, for kernels and containers without the netlink protocol that answers faster.
func readTables(pid int, states []sockdiag.State, visit func(sockdiag.Socket)) {
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join("/proc", procName(pid), "net", table)) //nolint:gosec // a file of the kernel
		if err != nil {
			continue
		}
		readTable(file, func(s sockdiag.Socket) {
			if slices.Contains(states, s.State) {
				visit(s)
			}
		})
		_ = file.Close()
	}
}

// readTable reads the lines of a table in /proc.
func readTable(r io.Reader, visit func(sockdiag.Socket)) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if s, ok := parseLine(lines.Text()); ok {
			visit(s)
		}
	}
}

// parseLine reads "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...", of which the addresses, the state
// and the retransmissions are in hex.
func parseLine(line string) (s sockdiag.Socket, ok bool) {
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
	s.State, s.Retries, s.UID, s.Inode = sockdiag.State(state), uint8(min(retries, 255)), uint32(uid), uint32(inode)
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
