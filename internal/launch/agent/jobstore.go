// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// openStore starts the store of the attempt on an address that the workers alone need: the loopback interface for a job
// on one node. Without it rank 0 hosts the store on a port that was free a moment ago.
func (a *attempt) openStore() error {
	c := a.job.cfg
	if c.spread() {
		return a.shareStore()
	}
	address := net.JoinHostPort(a.place.addr, strconv.Itoa(c.MasterPort))
	if c.NoShim {
		l, err := net.Listen("tcp", address) //nolint:noctx // it listens for no time at all
		if err != nil {
			return storeError(address, err)
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			a.place.port = tcp.Port
		}
		return l.Close()
	}
	server, err := tcpstore.Listen(address, a.job.storeOptions()...)
	if err != nil {
		return storeError(address, err)
	}
	a.store, a.place.port, a.place.ours = server, server.Port(), true
	return nil
}

// shareStore is the store of a job whose members are on several nodes: it is at the endpoint, on this node or another.
func (a *attempt) shareStore() error {
	c := a.job.cfg
	host, text, err := net.SplitHostPort(c.Endpoint)
	if err != nil {
		return refuse("the endpoint %s: %w", c.Endpoint, err)
	}
	port, err := net.LookupPort("tcp", text) //nolint:noctx // a number, or a name of this machine
	if err != nil {
		return refuse("the endpoint %s: %w", c.Endpoint, err)
	}
	a.place.addr, a.place.port, a.place.ours = host, port, true
	a.job.announceProtection()
	if c.hosts(a.job.asked) {
		server, taken := tcpstore.Listen(c.Endpoint, a.job.storeOptions()...)
		switch {
		case taken == nil:
			a.store = server
			return nil
		case !errors.Is(taken, syscall.EADDRINUSE): // another launcher hosts it, or "cohort store serve"
			return storeError(c.Endpoint, taken)
		}
	}
	conn, err := a.job.connect(c.Endpoint, c.JoinTimeout, false, func(raw net.Conn) (net.Conn, error) { return raw, nil })
	if err != nil {
		return err
	}
	return conn.Close()
}

// gatewayTime bounds how long the workers of a node wait for its gateway, which reaches the store in a moment or says why it cannot.
const gatewayTime = 5 * time.Second

// openGateway starts the gateway of this node to the store of a job on several nodes, if the user wants one.
func (a *attempt) openGateway() error {
	c := a.job.cfg
	if !c.StoreGateway || c.MaxNodes < 2 {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens for no time at all
	if err != nil {
		return unavailable("a gateway to the store", err)
	}
	warnings := slog.New(slog.NewTextHandler(a.job.screen.err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
	g, err := storegate.Serve(l, storegate.Options{
		Upstreams: []string{a.place.address()}, AllowUIDs: c.AllowUIDs, Logger: warnings,
	})
	if err != nil {
		return err
	}
	a.gateway = g
	if at, is := g.Addr().(*net.TCPAddr); is {
		a.place.gateway = at.AddrPort()
	}
	ctx, cancel := context.WithTimeout(a.job.asked, gatewayTime)
	defer cancel()
	if err = g.Reached(ctx); errors.Is(err, cohort.NotSupported) {
		return err
	}
	return nil
}

// storeOptions keep other users of this host away from a store, and say so when one comes.
func (j *Job) storeOptions() []tcpstore.ServerOption {
	return []tcpstore.ServerOption{
		tcpstore.WithAllowedUIDs(j.cfg.AllowUIDs...), tcpstore.WithOnOtherUser(func(text string) { j.screen.logf("%s", text) }),
	}
}

func storeError(address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return cohort.Newf(op, cohort.AlreadyExists,
			"the port of %s is taken: leave --master-port out and a free one is chosen: %w", address, portowner.Named(address, err))
	}
	return unavailable("a store on "+address, err)
}

func (a *attempt) closeStore() {
	a.coordination.close(a.job)
	if a.gateway != nil {
		_ = a.gateway.Close()
	}
	if a.store != nil {
		_ = a.store.Close()
	}
}
