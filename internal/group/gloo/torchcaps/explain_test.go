// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

func TestExplain(t *testing.T) {
	late, lost := cohort.New("x", cohort.DeadlineExceeded, "it is late"), cohort.New("x", cohort.PeerLost, "")
	lost.Err, lost.Rank = errors.New("reset"), 3
	wrapped := errors.Join(errors.New("the first"), late)
	for _, c := range []struct {
		peers   Peers
		dt      tensor.DType
		message bool
		err     error
		want    string // a part of it, "" for the error as it was
	}{
		{Exactly(Newest), tensor.Float16, false, late, "no half types"},
		{Exactly(Newest), tensor.BFloat16, false, lost, "reset; a PyTorch rank whose build has no half types"},
		{Exactly(Newest), tensor.Float16, false, wrapped, "the first"},
		{Peers{Low: V2_6, High: V2_9}, tensor.Float16, false, late, "no half types"},
		{Exactly(V2_6), tensor.Float16, false, late, "see what the PyTorch ranks say"},
		{Exactly(V1_13), tensor.Float32, false, late, "see what the PyTorch ranks say"},
		{Exactly(Newest), tensor.Float32, false, lost, ""},
		{Exactly(Newest), tensor.Float16, true, late, ""},
		{Peers{}, tensor.Float16, false, late, ""},
		{Exactly(Newest), tensor.Float16, false, cohort.New("x", cohort.Closed, "closed"), ""},
		{Exactly(Newest), tensor.Float16, false, nil, ""},
	} {
		err := c.peers.Explain(c.dt, c.message, c.err)
		switch {
		case !errors.Is(err, c.err):
			t.Errorf("%v, %v: %v is not in %v", c.peers, c.dt, c.err, err)
		case c.want == "" && err != c.err: //nolint:errorlint // as it was
			t.Errorf("%v, %v: %v became %v", c.peers, c.dt, c.err, err)
		case c.want != "" && (!strings.Contains(err.Error(), c.want) || cohort.CodeOf(err) != cohort.CodeOf(c.err)):
			t.Errorf("%v, %v: %v became %v", c.peers, c.dt, c.err, err)
		}
	}
	if late.Detail != "it is late" {
		t.Error("the error itself was changed:", late)
	}
}
