// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"time"

	"github.com/cohort-dist/cohort/internal/launch/agent"
	"github.com/cohort-dist/cohort/internal/security/jobtls"
	"github.com/cohort-dist/cohort/internal/security/jobtoken"
)

// String does not print the token.
func (p Protection) String() string {
	switch {
	case p.Token != "":
		return "TLS with the token " + p.id()
	case p.CertFile != "":
		return "TLS with the certificate " + p.CertFile
	case p.Plaintext:
		return "plain text"
	}
	return "none"
}

// GoString is String.
func (p Protection) GoString() string { return p.String() }

// id names the job of the token, "" if there is none.
func (p Protection) id() string {
	t, err := jobtoken.Parse(p.Token)
	if err != nil {
		return ""
	}
	return t.ID()
}

// checkProtection refuses what cannot protect a job, before anything listens. One without any protection starts, and says that it is open.
func (c Config) checkProtection() error {
	p := c.Nodes.Protection
	if c.Nodes.Max == 1 {
		return nil
	}
	own := 0
	for _, file := range []string{p.CertFile, p.KeyFile, p.CAFile} {
		if file != "" {
			own++
		}
	}
	switch {
	case own > 0 && own < 3:
		return refuse("certificates of your own are three files: --tls-cert, --tls-key and --tls-ca")
	case own > 0 && p.Token != "":
		return refuse("a token and certificates of your own exclude each other: --token-file, or --tls-cert with --tls-key and --tls-ca")
	case p.Token != "":
		return p.checkToken(time.Now())
	}
	return nil
}

// checkToken says what is wrong with the token, and never what it is.
func (p Protection) checkToken(now time.Time) error {
	t, err := jobtoken.Parse(p.Token)
	switch {
	case err != nil:
		return refuse("the token of the job: %w", err)
	case t.Expired(now):
		return refuse("the token of the job expired at %s (this computer's clock shows %s): make a new one with \"cohort token new\", and "+
			"give it to all nodes", t.Expires().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return nil
}

// forAgent returns the protection in the form of the agent. It has been checked.
func (n Nodes) forAgent() agent.Protection {
	p := n.Protection
	a := agent.Protection{Plaintext: p.Plaintext}
	if n.Max == 1 {
		return a
	}
	if t, err := jobtoken.Parse(p.Token); err == nil {
		a.Token = &t
	}
	if p.CertFile != "" {
		a.Files = &jobtls.Files{Cert: p.CertFile, Key: p.KeyFile, CA: p.CAFile}
	}
	return a
}
