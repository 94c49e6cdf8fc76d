// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxRecord is the longest record that the kernel gives, and maxRecords bounds how often one is asked for.
	maxRecord, maxRecords = 8192, 1 << 16
)

// ReadKernelLog returns the records that the kernel's log holds, nil if they may not be read. name is "/dev/kmsg" but in tests.
func ReadKernelLog(name string) []string {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	return logRecords(func(buf []byte) (int, error) { return unix.Read(fd, buf) })
}

// logRecords reads a record each time, until there are no more.
func logRecords(read func([]byte) (int, error)) []string {
	var all []string
	buf := make([]byte, maxRecord)
	for range maxRecords {
		n, err := read(buf)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EPIPE): // it was overwritten: the next one comes
			continue
		case err != nil || n <= 0:
			return all
		}
		all = append(all, string(buf[:n]))
	}
	return all
}

// sinceBoot returns the kernel's time, as it is in the records; 0: not known.
func sinceBoot() time.Duration {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
