// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/security/joblisten"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storegate"
	"github.com/cohort-dist/cohort/internal/store/storeserve"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/sys/peeruid"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/store/tcpstore"
)

// Where the launchers of several nodes have credentials, the store of the job accepts only their gateways, over TLS, and each gateway
// serves the workers of its node on the loopback interface.

// listenStore opens a store that other nodes use.
func (j *Job) listenStore(addr string) (*tcpstore.Server, error) {
	if j.creds == nil {
		return tcpstore.Listen(addr, j.storeOptions()...)
	}
	raw, err := storeserve.Addr(addr)
	if err != nil {
		return nil, unavailable("a store on "+addr, err)
	}
	l := joblisten.Listen(j.users().Listener(raw), j.creds.Server(jobtls.Store), j.refusedAtStore)
	return tcpstore.Serve(l, j.storeOptions()...)
}

// users says which users of this host may connect.
func (j *Job) users() *peeruid.Policy {
	return peeruid.Default(j.cfg.AllowUIDs, func(text string) { j.screen.logf("%s", text) })
}

// refusedAtStore says which clients the store has refused, once for each kind.
func (j *Job) refusedAtStore(addr string, why error) {
	switch {
	case errors.Is(why, joblisten.ErrPlain):
		j.screen.logf("a client at %s has connected to the store of the job without TLS and was refused: workers use the gateway of their "+
			"own launcher, at the MASTER_ADDR and MASTER_PORT that it has given them", addr)
	case errors.Is(why, joblisten.ErrForeign):
		j.screen.logf("a client at %s was refused by the store of the job, which accepts only launchers with the token or certificates of "+
			"this job: %s", addr, printable.Line(why.Error()))
	default:
		j.screen.logf("a client at %s has connected to the store of the job and does not speak as a launcher does", addr)
	}
}

// toStore is how the launcher that hosts the rendezvous at an address is recognised as the one that hosts the store.
func (j *Job) toStore(host string) *tls.Config {
	if j.creds == nil {
		return nil
	}
	name, _, _ := net.SplitHostPort(host)
	return j.creds.Client(jobtls.Store, name)
}

// gatewayTime bounds how long the workers of a node wait for its gateway, which reaches the store in a moment or says why it cannot.
const gatewayTime = 5 * time.Second

// openGateway starts the gateway of this node to the store of a job on several nodes, if the store accepts only gateways, or the user
// wants one. PyTorch's clients cannot show who they are, so they use the store of a job with credentials through their launcher.
func (a *attempt) openGateway() error {
	c := a.job.cfg
	a.place.secure = a.job.creds != nil
	if !a.place.secure && (!c.StoreGateway || c.MaxNodes < 2) {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it listens for no time at all
	if err != nil {
		return unavailable("a gateway to the store", err)
	}
	warnings := slog.New(slog.NewTextHandler(a.job.screen.err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}))
	g, err := storegate.Serve(l, storegate.Options{
		Upstreams: []string{a.place.address()}, TLS: a.job.toStore(a.place.host), AllowUIDs: c.AllowUIDs, Logger: warnings,
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

// admitSelf makes this launcher a node where the launchers join no host, because they share a store.
func (j *Job) admitSelf() error {
	if j.creds == nil {
		return nil
	}
	return j.creds.AdmitSelf(max(0, j.cfg.NodeRank))
}

// openShared finds out whether the store that the launchers share is one for this launcher.
func (j *Job) openShared(raw net.Conn) (net.Conn, error) {
	addr := j.cfg.Endpoint
	if j.creds == nil {
		return raw, nil
	}
	ctx, cancel := context.WithTimeout(j.asked, handshakeTime)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		t := tls.Client(raw, j.toStore(addr))
		return t, t.HandshakeContext(ctx)
	}
	d := storedial.Dialer{Addr: addr, Log: slog.New(slog.DiscardHandler), Dial: dial}
	f, err := d.Again(ctx, storedial.Conn{Dialect: wire.Native})
	if err == nil {
		return f.Conn, nil
	}
	_ = raw.Close()
	if e, ok := errors.AsType[*cohort.Error](err); ok && e.Err != nil {
		err = e.Err // without the words of a client of the store
	}
	if err = j.refusedBy(addr, err); errors.Is(err, errSilent) && plainStore(ctx, addr) {
		err = cohort.Newf(op, cohort.Mismatch, "the store at %s does not use TLS, and this launcher has a token or certificates: have a "+
			"launcher host the store, or start all nodes without them and with --insecure-plaintext", addr)
	}
	return nil, err
}

// plainStore reports whether a store that everyone can use listens at an address.
func plainStore(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	client, err := tcpstore.Dial(ctx, addr)
	if err == nil {
		_ = client.Close()
	}
	return err == nil
}

// checkStore refuses the store of a host that does not protect it.
func (m *member) checkStore(overTLS bool) error {
	if m.job.creds == nil || overTLS {
		return nil
	}
	return cohort.Newf(op, cohort.Mismatch, "the launcher that hosts the rendezvous at %s is of an older version of cohort, whose store "+
		"does not use TLS: start all nodes with the same version", m.host)
}
