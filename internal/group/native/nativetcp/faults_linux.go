// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package nativetcp

import "golang.org/x/sys/unix"

// Sever ends all connections without a shutdown message, as the death of the process would. It is for tests.
func (m *Mesh) Sever() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.mu.conns {
		if c != nil && c.gone == nil {
			_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
		}
	}
}

// Cut ends the connection to one rank without a shutdown message. It is for tests.
func (m *Mesh) Cut(rank int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.mu.conns[rank]; c.gone == nil {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// Copied is the bytes of messages that did not come straight from the kernel to where they belong. It is for tests.
func (m *Mesh) Copied() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.copied
}

// Pace limits the rate of each connection, in bytes for each second, as a cloud does. It is for benchmarks.
func (m *Mesh) Pace(rate int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.mu.conns {
		if c != nil && c.gone == nil {
			if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate); err != nil {
				return err
			}
		}
	}
	return nil
}
