// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import "github.com/cohort-dist/cohort"

// op begins the text of every error of this package.
const op = "launch"

// refuse returns the error of a configuration that cannot be run.
func refuse(format string, args ...any) error {
	return cohort.Newf(op, cohort.InvalidArgument, format, args...)
}

// unavailable returns the error of something that the launcher needs and does not get. The code is that of err, if it has one.
func unavailable(what string, err error) error {
	e := cohort.Wrap(op, cohort.Unavailable, err)
	e.Detail = what + ": " + err.Error()
	return e
}
