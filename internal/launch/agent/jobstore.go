// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net"
	"strconv"
	"syscall"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// reachStore starts the store of the attempt, unless another launcher does and gives the place, and the gateway to it if there is one.
func (a *attempt) reachStore(given func(*place)) error {
	if given != nil {
		given(&a.place)
		return a.openGateway()
	}
	if err := a.openStore(); err != nil || !a.job.cfg.spread() || a.job.creds == nil {
		return err
	}
	return a.openGateway()
}

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
	a.place.host, a.place.addr, a.place.port, a.place.ours = c.Endpoint, host, port, true
	a.job.announceProtection()
	if err = a.job.admitSelf(); err != nil {
		return err
	}
	if c.hosts(a.job.asked) {
		server, taken := a.job.listenStore(c.Endpoint)
		switch {
		case taken == nil:
			a.store = server
			return nil
		case !errors.Is(taken, syscall.EADDRINUSE): // another launcher hosts it, or "cohort store serve"
			return storeError(c.Endpoint, taken)
		}
	}
	conn, err := a.job.connect(c.Endpoint, c.JoinTimeout, false, a.job.openShared)
	if err != nil {
		return err
	}
	return conn.Close()
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
