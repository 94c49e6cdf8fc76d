// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package torchcaps

import (
	"errors"
	"fmt"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/tensor"
)

// Explain adds to the error of a collective what most likely led to it, if PyTorch ranks can: they raise a separate error and report
// nothing to the others, who lose them or wait. That a build of PyTorch has no half types cannot be known before.
func (p Peers) Explain(dt tensor.DType, message bool, err error) error {
	e, ok := errors.AsType[*cohort.Error](err)
	if !ok || message || p.None() || e.Code != cohort.PeerLost && e.Code != cohort.DeadlineExceeded {
		return err
	}
	why := "a PyTorch rank that has raised an error in an operation, or did not call it, takes no part in it: see what the PyTorch ranks say"
	switch {
	case (dt == tensor.Float16 || dt == tensor.BFloat16) && p.High >= V2_8:
		why = "a PyTorch rank whose build has no half types in gloo, as Debian's after 2.6, raises an error for " + dt.String() + `, "Invalid scalar type": convert the tensor`
	case e.Code == cohort.PeerLost:
		return err
	}
	return fmt.Errorf("%w; %s", err, why)
}
