// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"fmt"
	"os"
)

// DataProcess is the variable that makes the test binary a server with a folder: "DIR,ADDR".
const DataProcess = "COHORT_TEST_DATA_SERVER"

// serveData serves until the process is killed.
func serveData(dir, addr string) {
	if _, err := Listen(addr, WithDataDir(dir), WithSmallLog(256<<10, 512<<10), WithLoops(2)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	select {}
}

// WithSmallLog makes the files of the log of a data folder small, and snapshots frequent.
func WithSmallLog(segment, snapshot int64) ServerOption {
	return serverOption(func(c *serverConfig) { c.segment, c.snapshot = segment, snapshot })
}
