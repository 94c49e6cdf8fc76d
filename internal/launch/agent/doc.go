// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent runs the workers of a job on one node: it starts them through the supervisor process, restarts them, takes part in the
// rendezvous of several nodes, collects evidence when they fail or hang, and reports each attempt to its caller, package launch. It
// corresponds to torch.distributed.elastic.agent.server.LocalElasticAgent.
//
// [Job] is a run of a [Config]. An attempt is driven by the pure machine [launchcore.Group]; one goroutine owns it and performs its
// effects. On several nodes a member is the connection of this node to the [nodecoord.Host] that coordinates them, and an election
// chooses the host where the endpoint is a store.
package agent

import "github.com/cohort-dist/cohort"

// op begins the text of every error of a launcher.
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
