// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobcert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// What is wrong with the certificate of another process, for errors.Is.
var (
	// ErrForeign: the authority of this job has not issued it, or it is not for this job.
	ErrForeign = errors.New("its certificate is not one of this job")
	// ErrClock: it is not valid yet, so one of the two clocks is wrong.
	ErrClock = errors.New("its certificate is not valid yet")
	// ErrExpired: it is not valid any more.
	ErrExpired = errors.New("its certificate has expired")
	// ErrRole: its issuer had no right to issue it.
	ErrRole = errors.New("its certificate has an issuer that may not issue it")
)

// maxChain bounds the certificates that a process may show: that of a rank, of its node and of the job.
const maxChain = 3

// Verify says whose certificate the first of a chain is, if the authority of the job has issued it, directly or through the launcher of
// the node. now is this process's time.
func Verify(root *x509.Certificate, chain []*x509.Certificate, now time.Time) (Name, error) {
	if len(chain) == 0 || len(chain) > maxChain {
		return Name{}, fmt.Errorf("%w: %d certificates were shown", ErrForeign, len(chain))
	}
	name, err := nameIn(chain[0])
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if name.Job != root.Subject.CommonName {
		return Name{}, fmt.Errorf("%w: it is for another job", ErrForeign)
	}
	found, err := verifyAt(root, chain, now)
	if err != nil {
		return Name{}, inTime(root, chain, now, err)
	}
	return name, issuedBy(name, found)
}

func verifyAt(root *x509.Certificate, chain []*x509.Certificate, now time.Time) ([]*x509.Certificate, error) {
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	options.Roots.AddCert(root)
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	chains, err := chain[0].Verify(options)
	if err != nil {
		return nil, err
	}
	return chains[0], nil
}

// inTime finds out whether a certificate was refused for its time only. A wrong time is reported of certificates of the job alone.
func inTime(root *x509.Certificate, chain []*x509.Certificate, now time.Time, refused error) error {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](refused); !ok || invalid.Reason != x509.Expired {
		return fmt.Errorf("%w: %w", ErrForeign, refused)
	}
	from, to := chain[0].NotBefore, earlier(chain[0].NotAfter, root.NotAfter)
	for _, c := range chain[1:] {
		if c.NotBefore.After(from) {
			from = c.NotBefore
		}
		to = earlier(to, c.NotAfter)
	}
	if _, err := verifyAt(root, chain, from); err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if now.Before(from) {
		return fmt.Errorf("%w: it begins at %s, and the clock of this computer shows %s", ErrClock, stamp(from), stamp(now))
	}
	return fmt.Errorf("%w: it ended at %s, and the clock of this computer shows %s", ErrExpired, stamp(to), stamp(now))
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// issuedBy checks what X.509 does not: that the issuer of a name was the one that may issue it.
func issuedBy(name Name, chain []*x509.Certificate) error {
	direct := len(chain) == 2
	if name.Role == Host || name.Role == Node {
		if !direct {
			return fmt.Errorf("%w: that of %s was not issued by the job", ErrRole, name.words())
		}
		return nil
	}
	if direct {
		return fmt.Errorf("%w: that of %s was not issued by its launcher", ErrRole, name.words())
	}
	issuer, err := nameIn(chain[1])
	if err != nil || issuer != (Name{Job: name.Job, Role: Node, Node: name.Node}) {
		return fmt.Errorf("%w: that of %s was issued by %s", ErrRole, name.words(), issuer.words())
	}
	return nil
}

// nameIn is the name in a certificate: its only URI, beside which it has no other names.
func nameIn(c *x509.Certificate) (Name, error) {
	if len(c.URIs) != 1 || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) > 0 {
		return Name{}, fmt.Errorf("it has %d URIs in place of one, or other names", len(c.URIs))
	}
	return ParseName(c.URIs[0].String())
}
