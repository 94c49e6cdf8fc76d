// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"flag"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain takes one flag: go test ./store/tcpstore -loops 3 runs all tests with servers of three loops. Without it servers have
// one loop, and three under the race detector, so that "make check" runs all tests with both.
func TestMain(m *testing.M) {
	flag.IntVar(&defaultLoops, "loops", defaultLoops, "event loops of a server that is told nothing")
	if dir, addr, serves := strings.Cut(os.Getenv(DataProcess), ","); serves {
		serveData(dir, addr)
	}
	goleak.VerifyTestMain(m)
}
