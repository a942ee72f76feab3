//! One plot as SVG: lines with points over two labelled axes.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::escaped;

/// Size in user units; the page scales it.
const SIZE: (u32, u32) = (960, 440);

/// Colours that people with colour vision deficiencies can distinguish (Okabe and Ito), the darkest
/// first.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];

/// Scale of an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from 0.
    #[default]
    Linear,
    /// A scale by powers of ten. Values of 0 or less cannot be drawn and are omitted.
    Log,
}

/// An axis: its label with unit, and its scale.
#[derive(Clone, Debug)]
pub struct Axis {
    label: String,
    scale: Scale,
}

impl Axis {
    /// A linear axis. The label ends with the unit: `time in ms`.
    #[must_use]
    pub fn new(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Linear }
    }

    /// A logarithmic axis.
    #[must_use]
    pub fn log(label: &str) -> Self {
        Self { label: label.to_owned(), scale: Scale::Log }
    }
}

/// One line of a plot.
#[derive(Clone, Debug)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A plot under construction.
#[derive(Clone, Debug)]
pub struct Plot {
    title: String,
    caption: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
}

impl Plot {
    /// A plot without lines.
    #[must_use]
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.to_owned(), caption: String::new(), x, y, series: Vec::new() }
    }

    /// Adds a note below the plot.
    #[must_use]
    pub fn captioned(mut self, caption: &str) -> Self {
        caption.clone_into(&mut self.caption);
        self
    }

    /// Adds a line. Points that are not finite numbers are omitted.
    #[must_use]
    pub fn series(mut self, name: &str, points: &[(f64, f64)]) -> Self {
        self.series.push(Series { name: name.to_owned(), points: points.to_vec() });
        self
    }

    pub(super) fn title(&self) -> &str {
        &self.title
    }

    pub(super) fn caption(&self) -> &str {
        &self.caption
    }

    /// Returns the drawing; `None` if there is no point to draw.
    pub(super) fn to_svg(&self) -> Option<String> {
        let fits = |scale, value: f64| value.is_finite() && (scale == Scale::Linear || value > 0.0);
        let drawable = |&(x, y): &(f64, f64)| fits(self.x.scale, x) && fits(self.y.scale, y);
        let series: Vec<Series> = self
            .series
            .iter()
            .map(|line| {
                let points = line.points.iter().copied().filter(drawable).collect();
                Series { name: line.name.clone(), points }
            })
            .collect();
        let all = || series.iter().flat_map(|line| &line.points);
        let x = span(self.x.scale, 1.03, all().map(|p| p.0))?;
        // The space above holds the legend.
        let y = span(self.y.scale, 1.15, all().map(|p| p.1))?;
        let mut svg = String::new();
        let drawn = {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            let (log_x, log_y) = ((x.0..x.1).log_scale(), (y.0..y.1).log_scale());
            match (self.x.scale, self.y.scale) {
                (Scale::Linear, Scale::Linear) => self.draw(&area, x.0..x.1, y.0..y.1, &series),
                (Scale::Linear, Scale::Log) => self.draw(&area, x.0..x.1, log_y, &series),
                (Scale::Log, Scale::Linear) => self.draw(&area, log_x, y.0..y.1, &series),
                (Scale::Log, Scale::Log) => self.draw(&area, log_x, log_y, &series),
            }
        };
        // Drawing into a string only fails because of a bug here. The report then has only the
        // table.
        drawn.ok()?;
        let label = format!(r#"<svg role="img" aria-label="{}" "#, escaped(&self.title));
        Some(svg.replacen("<svg ", &label, 1))
    }

    fn draw<X, Y>(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        x: X,
        y: Y,
        series: &[Series],
    ) -> Result<(), Box<dyn std::error::Error>>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let sans = |size| ("sans-serif", size).into_font();
        area.fill(&WHITE).map_err(|error| error.to_string())?;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, sans(25))
            .margin(12)
            .x_label_area_size(50)
            .y_label_area_size(84)
            .build_cartesian_2d(x, y)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(215, 215, 215))
            // More labels would overlap on a logarithmic axis.
            .x_labels(if self.x.scale == Scale::Log { 6 } else { 10 })
            .y_labels(if self.y.scale == Scale::Log { 16 } else { 8 })
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .axis_desc_style(sans(19))
            .label_style(sans(17))
            .x_label_formatter(&|value| tick(*value))
            .y_label_formatter(&|value| tick(*value))
            .draw()
            .map_err(|error| error.to_string())?;
        for (line, colour) in series.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style))
                .map_err(|error| error.to_string())?
                .label(&line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            // Points show measured values; a long curve does not need them.
            if line.points.len() <= 40 {
                let dots = line.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
                chart.draw_series(dots).map_err(|error| error.to_string())?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .label_font(sans(17))
            .draw()
            .map_err(|error| error.to_string())?;
        area.present().map_err(|error| error.to_string().into())
    }
}

/// Returns the range of an axis: it contains all values, extends to `air` times the largest on a
/// linear axis, and is never empty.
fn span(scale: Scale, air: f64, values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold(None, |span: Option<(f64, f64)>, value| {
        let (low, high) = span.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })?;
    Some(match scale {
        Scale::Log => (low / 1.25, high * 1.6),
        Scale::Linear => {
            let high = if high > 0.0 { high } else { 1.0 };
            (low.min(0.0), high * air)
        }
    })
}

/// Formats the value of an axis label, as short as possible.
fn tick(value: f64) -> String {
    let size = value.abs();
    if size >= 1000.0 && value.fract().abs() < 1e-6 {
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{}", crate::units::grouped(size as u64));
    }
    // The last digits of a float are noise.
    let digits = if size >= 100.0 {
        0
    } else if size >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::well_formed::assert_well_formed;

    fn plot(x: Axis, y: Axis) -> Plot {
        Plot::new("A plot", x, y)
            .series("naive, 1 shard", &[(1_000.0, 2.5), (5_000.0, 13.0), (15_000.0, 41.0)])
            .series("publish, 1 shard", &[(1_000.0, 1.5), (5_000.0, 0.0), (15_000.0, f64::NAN)])
    }

    #[test]
    fn every_series_and_label_is_drawn_on_every_scale() {
        type Make = fn(&str) -> Axis;
        for (x, y) in [
            (Axis::new as Make, Axis::new as Make),
            (Axis::new, Axis::log),
            (Axis::log, Axis::new),
            (Axis::log, Axis::log),
        ] {
            let svg = plot(x("subscribers"), y("time in ms")).to_svg().unwrap();
            assert_well_formed(&svg);
            for words in
                ["naive, 1 shard", "publish, 1 shard", "subscribers", "time in ms", "A plot"]
            {
                assert!(svg.contains(words), "{words:?}");
            }
            assert!(svg.matches("<polyline").count() >= 2, "a line for each series");
            assert!(!svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn points_that_cannot_be_drawn_are_left_out() {
        let dots = |plot: Plot| plot.to_svg().map(|svg| svg.matches("<circle").count());
        assert_eq!(dots(plot(Axis::new("x"), Axis::new("y"))), Some(5), "no number is no point");
        assert_eq!(dots(plot(Axis::new("x"), Axis::log("y"))), Some(4), "0 has no logarithm");
        assert_eq!(dots(Plot::new("t", Axis::new("x"), Axis::new("y")).series("s", &[])), None);
        let one = Plot::new("t", Axis::log("x"), Axis::log("y")).series("s", &[(7.0, 7.0)]);
        assert_eq!(dots(one), Some(1));
        let zeroes = Plot::new("t", Axis::new("x"), Axis::new("y")).series("s", &[(0.0, 0.0)]);
        assert_eq!(dots(zeroes), Some(1));
    }

    #[test]
    fn ticks_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (15_000.0, "15,000"),
            (2.5, "2.5"),
            (0.1 + 0.2, "0.3"),
            (100.0, "100"),
            (-2_000.0, "-2,000"),
        ] {
            assert_eq!(tick(value), text);
        }
    }
}
