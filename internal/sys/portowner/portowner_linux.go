// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	stateEstablished = "01"
	stateSynSent     = "02"
	stateListen      = "0A"
	maxCommand       = 80
	// searchTimeout bounds a search. A machine with very many open files is not searched to the end: the name is a help in an
	// error or a view, which must not be late for it.
	searchTimeout = time.Second
)

// Find returns the process that listens on port. It reads /proc, so it sees only processes that this user may look
// into; ok is false when it is unknown.
func Find(port int) (owner Owner, ok bool) {
	inodes := map[string]bool{}
	for addr, inode := range Listeners() {
		if int(addr.Port()) == port {
			inodes[inode] = true
		}
	}
	if len(inodes) == 0 {
		return owner, false
	}
	eachOpenSocket(func(pid int, inode string) bool {
		if ok = inodes[inode]; ok {
			owner = describe(pid)
		}
		return !ok
	})
	return owner, ok
}

// Listeners returns the identity of every socket of this machine that listens, by its address. Two sockets that had an address
// one after the other have different identities.
func Listeners() map[netip.AddrPort]string {
	all := map[netip.AddrPort]string{}
	if err := askListeners(func(local netip.AddrPort, inode string) { all[local] = inode }); err == nil {
		return all
	}
	return readListeners()
}

// readListeners is Listeners for kernels and containers without the netlink protocol that answers it at once.
func readListeners() map[netip.AddrPort]string {
	all := map[netip.AddrPort]string{}
	eachSocket("/proc/net", func(s socket) {
		if s.state == stateListen {
			all[s.local] = s.inode
		}
	})
	return all
}

// Clients returns the processes on this machine whose ends of connections to a server have the given addresses, as far
// as they are known. The server's port is needed: one process may use an address for its connection to this server, and
// another one for one elsewhere.
func Clients(server int, addrs []netip.AddrPort) map[netip.AddrPort]Owner {
	wanted := map[netip.AddrPort]bool{}
	for _, addr := range addrs {
		wanted[unmapped(addr)] = true
	}
	inodes := clientSockets(server, wanted)
	owners := map[netip.AddrPort]Owner{}
	if len(inodes) == 0 {
		return owners
	}
	eachOpenSocket(func(pid int, inode string) bool {
		if addr, found := inodes[inode]; found {
			owners[addr] = describe(pid)
			delete(inodes, inode)
		}
		return len(inodes) > 0
	})
	return owners
}

// clientSockets returns the sockets of connections to a server whose addresses are wanted.
func clientSockets(server int, wanted map[netip.AddrPort]bool) map[string]netip.AddrPort {
	inodes := map[string]netip.AddrPort{}
	eachSocket("/proc/net", func(s socket) {
		if s.state == stateEstablished && wanted[s.local] && int(s.remote.Port()) == server {
			inodes[s.inode] = s.local
		}
	})
	return inodes
}

// Dialing returns the addresses that processes in one network namespace try to connect to and have had no answer from, by process.
func Dialing(pids []int) map[int][]netip.AddrPort {
	remotes := map[string]netip.AddrPort{} // by inode
	for _, pid := range pids {
		if eachSocket(filepath.Join("/proc", strconv.Itoa(pid), "net"), func(s socket) {
			if s.state == stateSynSent {
				remotes[s.inode] = s.remote
			}
		}) {
			break // one that has not ended is enough
		}
	}
	if len(remotes) == 0 {
		return nil
	}
	all := map[int][]netip.AddrPort{}
	socketsOf(pids, func(pid int, inode string) bool {
		if remote, found := remotes[inode]; found {
			all[pid] = append(all[pid], remote)
		}
		return true
	})
	return all
}

// Listening returns the addresses that processes listen on, by process, as far as they are in the network namespace of this one.
func Listening(pids []int) map[int][]netip.AddrPort {
	addrs := map[string]netip.AddrPort{} // by inode
	for addr, inode := range Listeners() {
		addrs[inode] = addr
	}
	all := map[int][]netip.AddrPort{}
	socketsOf(pids, func(pid int, inode string) bool {
		if addr, found := addrs[inode]; found {
			all[pid] = append(all[pid], addr)
		}
		return true
	})
	return all
}

func unmapped(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// Remote returns the other end of a TCP connection of a process, which may be in another network namespace.
func Remote(pid int, inode string) (addr netip.AddrPort, ok bool) {
	eachSocket(filepath.Join("/proc", strconv.Itoa(pid), "net"), func(s socket) {
		if s.inode == inode && s.remote.Port() != 0 {
			addr, ok = s.remote, true
		}
	})
	return addr, ok
}

// socket is a TCP socket as the kernel lists it.
type socket struct {
	state         string
	local, remote netip.AddrPort
	inode         string
}

// eachSocket calls visit for every TCP socket of a network namespace. It reports whether there is something to read.
func eachSocket(folder string, visit func(socket)) (readable bool) {
	for _, table := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(folder, table)) //nolint:gosec // a file of the kernel
		if err != nil {
			continue
		}
		readable = true
		for lines := bufio.NewScanner(file); lines.Scan(); {
			// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 {
				continue
			}
			if local, ok := parseAddr(fields[1]); ok {
				remote, _ := parseAddr(fields[2])
				visit(socket{fields[3], local, remote, fields[9]})
			}
		}
		_ = file.Close()
	}
	return readable
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

// eachOpenSocket calls visit for every socket that a process has open, until it returns false or searchTimeout ends. It begins
// with this process: two masters of one process on one port are the most frequent case.
func eachOpenSocket(visit func(pid int, inode string) bool) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	pids := []int{os.Getpid()}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != pids[0] {
			pids = append(pids, pid)
		}
	}
	socketsOf(pids, visit)
}

// socketsOf calls visit for every socket that some processes have open, until it returns false or searchTimeout ends.
func socketsOf(pids []int, visit func(pid int, inode string) bool) {
	giveUp := time.Now().Add(searchTimeout)
	for _, pid := range pids {
		folder := filepath.Join("/proc", strconv.Itoa(pid), "fd")
		files, err := os.ReadDir(folder)
		if err != nil {
			continue // ended, or not readable for us
		}
		for _, file := range files {
			if time.Now().After(giveUp) {
				return
			}
			target, err := os.Readlink(filepath.Join(folder, file.Name()))
			if err != nil {
				continue
			}
			inode, found := strings.CutPrefix(target, "socket:[")
			if found && !visit(pid, strings.TrimSuffix(inode, "]")) {
				return
			}
		}
	}
}

func describe(pid int) Owner {
	folder := filepath.Join("/proc", strconv.Itoa(pid))
	owner := Owner{PID: pid}
	if line, err := os.ReadFile(filepath.Join(folder, "cmdline")); err == nil { //nolint:gosec // pid is a number
		text := strings.Join(strings.Fields(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))), " ") // an argument may have many lines
		if len(text) > maxCommand {
			text = text[:maxCommand] + "..."
		}
		owner.Command = strings.ToValidUTF8(text, "?")
	}
	if environment, err := os.ReadFile(filepath.Join(folder, "environ")); err == nil { //nolint:gosec // pid is a number
		for item := range bytes.SplitSeq(environment, []byte{0}) {
			if rank, found := bytes.CutPrefix(item, []byte("RANK=")); found {
				if _, err := strconv.ParseUint(string(rank), 10, 31); err == nil {
					owner.Rank = string(rank)
				}
			}
		}
	}
	return owner
}
