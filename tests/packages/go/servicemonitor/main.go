// Servicemonitor checks that each document on standard input is a ServiceMonitor by the Prometheus operator's own types,
// without a field that the operator does not know.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	strict "sigs.k8s.io/yaml"
)

func main() {
	documents, err := check(os.Stdin)
	if err == nil && documents == 0 {
		err = errors.New("no document on standard input")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "servicemonitor:", err)
		os.Exit(1)
	}
}

func check(input io.Reader) (documents int, err error) {
	reader := yaml.NewYAMLReader(bufio.NewReader(input))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return documents, err
		}
		var monitor monitoring.ServiceMonitor
		if err := strict.UnmarshalStrict(document, &monitor); err != nil {
			return documents, err
		}
		if monitor.APIVersion != "monitoring.coreos.com/v1" || monitor.Kind != monitoring.ServiceMonitorsKind {
			return documents, fmt.Errorf("%s %s is no ServiceMonitor", monitor.APIVersion, monitor.Kind)
		}
		if len(monitor.Spec.Endpoints) == 0 {
			return documents, fmt.Errorf("%s: no endpoint", monitor.Name)
		}
		documents++
	}
}
