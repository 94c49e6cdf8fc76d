// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
)

// order records in which order the connections of a mesh ended. Connections end in the order of deaths, since a rank that gives
// up because of another's death closes its own later; but they are not read in that order, least of all by a process that
// did not run meanwhile. The kernel keeps the order: it appends every connection whose state changes to the ready list of an
// epoll set. Data is not subscribed to, so it does not touch the list.
type order struct {
	mu struct {
		sync.Mutex
		set       int   // less than 0 if there is none
		positions []int // by rank; 0 as long as its connections are there
		last      int
	}
}

func newOrder(size int) *order {
	o := new(order)
	o.mu.positions = make([]int, size)
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		set = -1
	}
	o.mu.set = set
	return o
}

// add lets a connection take part. Without a system's connection below it, raw is nil.
func (o *order) add(rank int, raw syscall.RawConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if raw == nil || o.mu.set < 0 {
		return
	}
	event := unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(rank)} //nolint:gosec // a rank, not a descriptor
	_ = raw.Control(func(fd uintptr) { _ = unix.EpollCtl(o.mu.set, unix.EPOLL_CTL_ADD, int(fd), &event) })
}

// position returns the place of a rank in the order, 0 if its connections have not ended or nothing is known.
func (o *order) position(rank int) int {
	failpoint.At("gloo.order")
	o.mu.Lock()
	defer o.mu.Unlock()
	var events [16]unix.EpollEvent
	for o.mu.set >= 0 {
		n, err := unix.EpollWait(o.mu.set, events[:], 0)
		if err != nil || n <= 0 {
			break
		}
		for _, e := range events[:n] {
			if o.mu.positions[e.Fd] == 0 {
				o.mu.last++
				o.mu.positions[e.Fd] = o.mu.last
			}
		}
	}
	return o.mu.positions[rank]
}

func (o *order) close() {
	failpoint.At("gloo.order.close")
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.set >= 0 {
		_ = unix.Close(o.mu.set)
		o.mu.set = -1
	}
}

// sinceLastPacket returns how long ago the last packet came, and whether that is known. If the peer has ended the connection with
// a FIN, it is the packet that ended it.
func sinceLastPacket(raw syscall.RawConn) (age time.Duration, known bool) {
	if raw == nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			age, known = time.Duration(info.Last_ack_recv)*time.Millisecond, true
		}
	})
	return age, known
}

// iovecs are the arguments of one writev.
type iovecs [2 * maxBatch]syscall.Iovec

// tryWrite writes the batch without waiting and reports whether all of it went out.
func (p *pair) tryWrite() (done bool, err error) {
	b := &p.batch
	if b.attempt == nil {
		b.attempt = func(fd uintptr) bool {
			b.err = b.writev(fd)
			return true
		}
	}
	b.err = nil
	if err := p.raw.Write(b.attempt); err != nil {
		return false, err
	}
	if b.err == syscall.EAGAIN { //nolint:errorlint // straight from the kernel
		return false, nil
	}
	return b.err == nil, b.err
}

// write writes the batch, waiting for the peer to take it.
func (p *pair) write() error {
	if p.raw == nil {
		return p.writeAll()
	}
	b := &p.batch
	b.err = nil
	err := p.raw.Write(func(fd uintptr) bool {
		b.err = b.writev(fd)
		return b.err != syscall.EAGAIN //nolint:errorlint // straight from the kernel
	})
	if err != nil {
		return err
	}
	return b.err
}

// writev writes until nothing is left or the kernel takes no more.
func (b *batch) writev(fd uintptr) error {
	for len(b.rest) > 0 {
		iov := b.iov[:len(b.rest)]
		for i, buf := range b.rest {
			iov[i].Base = unsafe.SliceData(buf) //nolint:gosec // the kernel wants addresses
			iov[i].SetLen(len(buf))
		}
		//nolint:gosec // the one system call
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		clear(iov)
		switch errno {
		case 0:
			b.written(int(n))
		case syscall.EINTR:
		default:
			return errno
		}
	}
	return nil
}
