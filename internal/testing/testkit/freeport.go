// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// The ports to choose from: above those of well-known services, below those that kernels choose from by default.
const (
	lowest  = 20000
	highest = 32000
)

// FreePort returns a port without a listener. Until the test ends no other test gets it.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, release, err := TakePort()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
	return port
}

// TakePort is [FreePort] for other places than tests. The port is kept from others until release is called.
func TakePort() (port int, release func(), err error) {
	top := ceiling()
	for range 1000 {
		port = lowest + rand.IntN(top-lowest) //nolint:gosec // no secret
		if release, ok := reserve(port); ok {
			if vacant("127.0.0.1", port) && vacant("", port) {
				return port, release, nil
			}
			release()
		}
	}
	return 0, nil, errors.New("freeport: found no free port from " + strconv.Itoa(lowest) + " to " + strconv.Itoa(top-1))
}

// ceiling is the end of the range: where the kernel's own begins, if that leaves enough.
func ceiling() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	var low, high int
	if err == nil {
		if n, _ := fmt.Sscan(string(text), &low, &high); n == 2 && low >= lowest+1000 && low < highest {
			return low
		}
	}
	return highest
}

// reserve takes the port's place among the tests of this machine: an abstract socket, which ends with the process.
func reserve(port int) (release func(), ok bool) {
	if runtime.GOOS != "linux" {
		return func() {}, true
	}
	l, err := net.Listen("unix", "@cohort-test-port-"+strconv.Itoa(port)) //nolint:noctx // does not wait
	if err != nil {
		return nil, false
	}
	return func() { _ = l.Close() }, true
}

// vacant reports whether one can listen on the port.
func vacant(host string, port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))) //nolint:noctx // does not wait
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}
