// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

// This file lets "cohort why", "cohort ps" and "cohort trace" query the calls that an RPC worker waits for, in a job of
// "cohort run" and where COHORT_DUMP_DIR is set.

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"time"

	"github.com/cohort-dist/cohort/internal/observe/flightrec"
	"github.com/cohort-dist/cohort/internal/sys/controlsock"
)

// debugServer answers queries about a worker. Nothing depends on it.
type debugServer struct {
	// Calls is where the worker notes its calls; nil if they cannot be queried.
	Calls  *flightrec.Calls
	server *controlsock.Server
}

// serveDebug serves queries about a worker until Close, if its control socket can be made.
func serveDebug(worker string, logger *slog.Logger) *debugServer {
	calls := flightrec.NewCalls()
	server, err := controlsock.ServeOwn(controlsock.Answers{"stacks": controlsock.Stacks, "trace": func(context.Context) ([]byte, error) {
		host, _ := os.Hostname()
		w := &flightrec.Worker{Name: worker, Host: host, PID: os.Getpid()}
		w.Calls, w.More = calls.Oldest()
		d := flightrec.NewDump(time.Now(), "asked")
		d.Worker = w
		return json.Marshal(d)
	}})
	if err != nil {
		logger.Info("no debug socket: the calls that this worker waits for cannot be queried", slog.Any("error", err))
	}
	if server == nil {
		return &debugServer{}
	}
	return &debugServer{Calls: calls, server: server}
}

// Close ends it.
func (a *debugServer) Close() { a.server.Close() }
