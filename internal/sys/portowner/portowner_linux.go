// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package portowner

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/sys/sockdiag"
)

const (
	maxCommand = 80
	// searchTimeout bounds a search. A machine with very many open files is not searched to the end: the name is a help in an
	// error or a view, which must not be late for it.
	searchTimeout = time.Second
	// maxOpen bounds the open files of one process that are looked at.
	maxOpen = 1 << 17
)

// Find returns the process that listens on port. It reads /proc, so it sees only processes that this user may look
// into; ok is false when it is unknown.
func Find(port int) (owner Owner, ok bool) {
	inodes := map[uint32]bool{}
	eachSocket(0, []sockdiag.State{sockdiag.Listen}, func(s sockdiag.Socket) {
		if int(s.Local.Port()) == port {
			inodes[s.Inode] = true
		}
	})
	if len(inodes) == 0 {
		return owner, false
	}
	eachOpenSocket(func(pid int, inode uint32) bool {
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
	eachSocket(0, []sockdiag.State{sockdiag.Listen}, func(s sockdiag.Socket) { all[s.Local] = strconv.FormatUint(uint64(s.Inode), 10) })
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
	eachOpenSocket(func(pid int, inode uint32) bool {
		if addr, found := inodes[inode]; found {
			owners[addr] = describe(pid)
			delete(inodes, inode)
		}
		return len(inodes) > 0
	})
	return owners
}

// clientSockets returns the sockets of connections to a server whose addresses are wanted.
func clientSockets(server int, wanted map[netip.AddrPort]bool) map[uint32]netip.AddrPort {
	inodes := map[uint32]netip.AddrPort{}
	if len(wanted) == 0 {
		return inodes
	}
	eachSocket(0, []sockdiag.State{sockdiag.Established}, func(s sockdiag.Socket) {
		if wanted[s.Local] && int(s.Remote.Port()) == server {
			inodes[s.Inode] = s.Local
		}
	})
	return inodes
}

// ReadSockets reads the sockets of processes: the kernel's table once for each network namespace that they are in, and the list of
// open files of each process once.
func ReadSockets(pids []int) *Sockets {
	s := &Sockets{of: map[int][]sockdiag.Socket{}}
	type space struct {
		member int              // one of its processes
		owners map[uint32][]int // of its sockets: several processes may have one open
	}
	spaces := map[string]*space{}
	for _, pid := range pids {
		ns := namespace(pid)
		if ns == "" {
			ns = namespace(0)
		}
		x := spaces[ns]
		if x == nil {
			x = &space{pid, map[uint32][]int{}}
			spaces[ns] = x
		}
		socketsOf([]int{pid}, func(pid int, inode uint32) bool {
			x.owners[inode] = append(x.owners[inode], pid)
			return true
		})
	}
	states := append([]sockdiag.State{sockdiag.Listen, sockdiag.SynSent}, sockdiag.Connected...)
	for _, x := range spaces {
		if len(x.owners) == 0 {
			continue
		}
		eachSocket(x.member, states, func(socket sockdiag.Socket) {
			for _, pid := range x.owners[socket.Inode] {
				s.of[pid] = append(s.of[pid], socket)
			}
		})
	}
	return s
}

func unmapped(addr netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// eachOpenSocket calls visit for every socket that a process has open, until it returns false or searchTimeout ends. It begins
// with this process: two masters of one process on one port are the most frequent case.
func eachOpenSocket(visit func(pid int, inode uint32) bool) {
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
func socketsOf(pids []int, visit func(pid int, inode uint32) bool) {
	giveUp := time.Now().Add(searchTimeout)
	for _, pid := range pids {
		if time.Now().After(giveUp) {
			return
		}
		for _, inode := range openSockets(pid) {
			if !visit(pid, inode) {
				return
			}
		}
	}
}

// openSockets returns the sockets that a process has open, TCP or not; none if it has ended or may not be read.
func openSockets(pid int) (all []uint32) {
	dir, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(maxOpen)
	folder := int(dir.Fd()) // which is a call of the kernel
	var target [64]byte
	for _, name := range names {
		n, err := unix.Readlinkat(folder, name, target[:])
		if err != nil {
			continue
		}
		if inode, found := socketInode(target[:n]); found {
			all = append(all, inode)
		}
	}
	return all
}

// socketInode reads "socket:[INODE]", which the link of an open socket says.
func socketInode(target []byte) (inode uint32, found bool) {
	number, found := bytes.CutPrefix(target, []byte("socket:["))
	number, whole := bytes.CutSuffix(number, []byte("]"))
	n, err := strconv.ParseUint(string(number), 10, 32)
	return uint32(n), found && whole && err == nil
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
	sockdiag.Tables(pid, states, visit)
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
