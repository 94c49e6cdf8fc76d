// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/launch/nodecoord"
	"github.com/cohort-dist/cohort/internal/security/jobcert"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// Protection is how the launchers of a job on several nodes recognise each other: by one of the first two, or not at all.
type Protection struct {
	Token *jobtoken.Token
	Files *jobtls.Files
	// Plaintext says that the user trusts the network.
	Plaintext bool
}

// credentials are those of the job's launchers; nil if they meet in plain text.
func (p Protection) credentials(logf func(format string, args ...any)) (*jobtls.Credentials, error) {
	switch {
	case p.Token != nil:
		return jobtls.FromToken(*p.Token, time.Now)
	case p.Files != nil:
		c, err := jobtls.FromFiles(*p.Files, time.Now, func(err error) {
			logf("a certificate has changed and cannot be used, so the one before it stays: %v", err)
		})
		if err != nil {
			return nil, refuse("--tls-cert, --tls-key and --tls-ca: %w", err)
		}
		return c, nil
	}
	return nil, nil //nolint:nilnil // there are none
}

// errSilent says that what listens has ended a connection as soon as it was asked for TLS, or has sent nothing: a store, or a launcher
// that has too many strangers.
var errSilent = cohort.New(op, cohort.Unavailable, "what listens there does not answer in TLS")

// handshakeTime bounds the handshake with a host.
const handshakeTime = 5 * time.Second

// secure makes TLS of a connection to a rendezvous, and waits until the host has accepted it. A plain connection stays as it is.
func (j *Job) secure(c net.Conn, addr string) (net.Conn, error) {
	if j.creds == nil {
		return nodecoord.Greeted(c), nil
	}
	host, _, _ := net.SplitHostPort(addr)
	t := tls.Client(c, j.creds.Client(jobtls.Launch, host))
	ctx, cancel := context.WithTimeout(j.asked, handshakeTime)
	defer cancel()
	err := t.HandshakeContext(ctx)
	if err == nil {
		g := nodecoord.Greeted(t)
		if err = g.Wait(handshakeTime); err == nil {
			return g, nil
		}
	}
	_ = c.Close()
	return nil, j.refusedBy(addr, err)
}

// refusedBy says what it means that the handshake with a host has failed.
func (j *Job) refusedBy(addr string, err error) error {
	wrong := func(format string, args ...any) error { return cohort.Newf(op, cohort.Mismatch, format, args...) }
	remote, isRemote := errors.AsType[*net.OpError](err)
	switch _, plain := errors.AsType[tls.RecordHeaderError](err); {
	case j.asked.Err() != nil:
		return cohort.Ended(j.asked, op)
	case errors.Is(err, jobcert.ErrClock):
		return wrong("the clock of this computer does not agree with that of the launcher at %s: %w; set the clocks of all nodes, for "+
			"instance with NTP", addr, err)
	case errors.Is(err, jobcert.ErrExpired):
		return wrong("the launcher at %s is not accepted: %w; make a new token or certificate, and look at the clocks", addr, err)
	case errors.Is(err, jobcert.ErrForeign) || errors.Is(err, jobcert.ErrRole):
		return wrong("what listens at %s is not a launcher of this job: %w. %s", addr, err, j.remedy())
	case plain:
		return wrong("what listens at %s does not use TLS: a launcher of an older version of cohort, one that was started with "+
			"--insecure-plaintext, or another program; start all nodes with the same version and options", addr)
	case isRemote && remote.Op == "remote error":
		return wrong("the launcher at %s does not accept this one: %w. %s", addr, err, j.remedy())
	}
	return fmt.Errorf("%w: %w", errSilent, err)
}

// remedy says what launchers that do not accept each other need.
func (j *Job) remedy() string {
	if id := j.creds.ID(); id != "" {
		return "This launcher has the token " + id + " (\"cohort token show\" prints the id): give all nodes the same token file"
	}
	return "Give all nodes certificates of one authority: for the name of their endpoint, or with one SPIFFE ID"
}

// prove adds to a request to join what shows the host that this launcher is of the job.
func (j *Job) prove(request *nodecoord.Join, c net.Conn) (err error) {
	g, _ := c.(*nodecoord.Greeting)
	if g == nil {
		return nil
	}
	t, ok := g.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	request.Clock = time.Now().Unix()
	if request.Proof, err = j.creds.Prove(t.ConnectionState()); err == nil {
		request.Request, err = j.creds.Request()
	}
	return err
}

// announceProtection prints, once, what is protected where others can reach the job, and what is not.
func (j *Job) announceProtection() {
	elsewhere := j.cfg.LocalAddr != "" && !loopback(net.JoinHostPort(j.cfg.LocalAddr, ""))
	if j.announced || loopback(j.cfg.Endpoint) && !elsewhere {
		return
	}
	j.announced = true
	const ranks = "the connections among its ranks (gloo, NCCL, TensorPipe, TCP of Go ranks) are not protected: only computers that you " +
		"trust should reach them"
	const open = "the store of the job and " + ranks
	meet := "the launchers meet at " + j.cfg.Endpoint
	if j.cfg.spread() {
		meet = "the store of the job is at " + j.cfg.Endpoint
	}
	const protected = "%s, and all that launchers and store send each other is protected by TLS, with %s; %s"
	switch {
	case j.creds != nil && j.creds.ID() != "":
		j.screen.logf(protected, meet, "the token "+j.creds.ID(), ranks)
	case j.creds != nil:
		j.screen.logf(protected, meet, "your certificates", ranks)
	case j.cfg.spread():
		j.screen.logf("the store of the job, at %s, and %s", j.cfg.Endpoint, ranks)
	case j.cfg.RunID == DefaultRunID:
		j.warnOpen()
	case j.cfg.Protection.Plaintext:
		j.screen.logf("--insecure-plaintext: the launchers meet at %s without TLS, and %s", j.cfg.Endpoint, open)
	default:
		j.screen.logf("the launchers meet at %s without TLS (make a token: cohort token new -o FILE, and give all nodes "+
			"--token-file FILE), and %s", j.cfg.Endpoint, open)
	}
}
