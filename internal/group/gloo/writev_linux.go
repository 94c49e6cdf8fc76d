// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"syscall"
	"unsafe"
)

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
