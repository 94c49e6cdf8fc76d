// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobcert

import (
	"crypto/x509"
	"time"
)

// Renewal decides when a certificate is renewed: when two thirds of its life are over and, if that fails, again after a minute, two
// minutes and so on up to an hour. It is asked when the certificate is needed, and reads no clock itself.
type Renewal struct {
	due, retry time.Time
	pause      time.Duration
}

const (
	firstPause = time.Minute
	mostPause  = time.Hour
)

// NewRenewal begins with a certificate.
func NewRenewal(c *x509.Certificate) Renewal {
	return Renewal{due: c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)}
}

// Due reports whether the certificate is to be renewed now.
func (r *Renewal) Due(now time.Time) bool { return !now.Before(r.due) && !now.Before(r.retry) }

// Failed says that it was tried at that time, and has failed.
func (r *Renewal) Failed(now time.Time) {
	r.pause = min(max(2*r.pause, firstPause), mostPause)
	r.retry = now.Add(r.pause)
}
